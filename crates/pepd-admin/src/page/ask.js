// Questions to the daemon.

/** How long an answer may take, in milliseconds. */
const PATIENCE = 4000;

/** There is no daemon, or none that answers as one. */
export class NoAnswer extends Error {}

/** What the daemon said of a question that it does not understand. */
export class Refused extends Error {}

/** The answer at `address`, beside this page; null where there is nothing (any more). */
export async function ask(address) {
  let status;
  let answer;
  try {
    const response = await fetch(address, {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
    status = response.status;
    answer = await response.json();
  } catch (error) {
    throw new NoAnswer(`${address}: ${error.message}`);
  }
  if (status === 200) return answer;
  if (status === 404) return null;
  if (status === 400) throw new Refused(`${answer.error.what}; ${answer.error.cure}`);
  throw new NoAnswer(`${address}: ${status}`);
}
