// Questions to the daemon.

/** How long an answer may take, in milliseconds. */
const PATIENCE = 4000;

/** What the daemon said of a question that it does not understand. */
export class Refused extends Error {}

/** The answer at `address`, beside this page. */
export async function ask(address) {
  const response = await fetch(address, {
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  if (response.ok) return response.json();
  if (response.status === 400) {
    const { error } = await response.json();
    throw new Refused(`${error.what}; ${error.cure}`);
  }
  throw new Error(`${address}: ${response.status}`);
}
