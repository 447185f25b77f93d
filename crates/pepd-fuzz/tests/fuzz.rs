//! Every target with its inputs, as they are and mutated: so many times each, and the same way each
//! time, so that a tree that is green stays so. `PEPD_SEED` draws other mutations; `cargo xtask fuzz`
//! goes on for as long as it is told, guided by what is reached.

use std::fs;
use std::path::{Path, PathBuf};

use pepd_fuzz::{TARGETS, Target};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// A change of an input.
#[derive(Clone, Debug)]
enum Mutation {
    /// One bit is another.
    Flip(Index, u8),
    /// A number in some bytes, as either end has it.
    Number(Index, usize, u64, bool),
    /// Bytes are put in.
    Insert(Index, Vec<u8>),
    /// Bytes are taken out.
    Remove(Index, usize),
    /// Bytes come once more, elsewhere.
    Repeat(Index, usize, Index),
    /// A part of another input comes in between.
    Splice(Index, Index, usize, Index),
    /// It ends here.
    Cut(Index),
}

/// The bytes that an input is extended to at most.
const LONGEST: usize = 128 * 1024;

impl Mutation {
    fn any() -> impl Strategy<Value = Self> {
        let at = any::<Index>;
        let number = prop_oneof![
            any::<u64>(),
            (0_u32..64).prop_map(|bit| 1 << bit),
            (0_u32..64).prop_map(|bit| (1 << bit) - 1),
            0_u64..40,
        ];
        let width = prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)];
        let letters = prop_oneof![Just(b'"'), Just(b'\n'), Just(b'0'), any::<u8>()];
        prop_oneof![
            (at(), 0_u8..8).prop_map(|(at, bit)| Self::Flip(at, bit)),
            (at(), width, number, any::<bool>())
                .prop_map(|(at, width, number, big)| Self::Number(at, width, number, big)),
            (at(), vec(letters, 1..6)).prop_map(|(at, bytes)| Self::Insert(at, bytes)),
            (at(), 1_usize..64).prop_map(|(at, len)| Self::Remove(at, len)),
            (at(), 1_usize..256, at()).prop_map(|(from, len, to)| Self::Repeat(from, len, to)),
            (at(), at(), 1_usize..256, at())
                .prop_map(|(other, from, len, to)| Self::Splice(other, from, len, to)),
            at().prop_map(Self::Cut),
        ]
    }

    fn apply(&self, input: &mut Vec<u8>, others: &[(PathBuf, Vec<u8>)]) {
        let place = |at: &Index, len: usize| at.index(len + 1);
        let part = |bytes: &[u8], from: &Index, len: usize| {
            let from = place(from, bytes.len());
            bytes[from..bytes.len().min(from + len)].to_vec()
        };
        match self {
            Self::Flip(at, bit) => {
                let at = place(at, input.len());
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Number(at, width, number, big) => {
                let mut bytes = number.to_le_bytes()[..*width].to_vec();
                if *big {
                    bytes.reverse();
                }
                let at = place(at, input.len());
                for (byte, new) in input.iter_mut().skip(at).zip(bytes) {
                    *byte = new;
                }
            }
            Self::Insert(at, bytes) => put(input, at, bytes),
            Self::Remove(at, len) => {
                let from = place(at, input.len());
                input.drain(from..input.len().min(from + len));
            }
            Self::Repeat(from, len, to) => {
                let bytes = part(input, from, *len);
                put(input, to, &bytes);
            }
            Self::Splice(other, from, len, to) => {
                let bytes = part(&other.get(others).1, from, *len);
                put(input, to, &bytes);
            }
            Self::Cut(at) => input.truncate(place(at, input.len())),
        }
    }
}

fn put(input: &mut Vec<u8>, at: &Index, bytes: &[u8]) {
    if input.len() + bytes.len() <= LONGEST {
        let at = at.index(input.len() + 1);
        input.splice(at..at, bytes.iter().copied());
    }
}

/// Runs a target with its inputs and `cases` mutations of them.
fn fuzzed(name: &str, cases: u32) {
    let target = Target::named(name).unwrap();
    let inputs = target.inputs().unwrap();
    assert!(!inputs.is_empty());
    for (path, input) in &inputs {
        println!("{}", path.display());
        (target.run)(input);
    }
    let seed = std::env::var("PEPD_SEED").map_or(1_u64, |seed| seed.parse().unwrap());
    let seed = [seed.to_le_bytes(), [0; 8], [0; 8], [0; 8]].concat();
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mutations = (any::<Index>(), vec(Mutation::any(), 1..8));
    let mutated = |(input, mutations): &(Index, Vec<Mutation>)| {
        let mut bytes = input.get(&inputs).1.clone();
        for mutation in mutations {
            mutation.apply(&mut bytes, &inputs);
        }
        bytes
    };
    let result = TestRunner::new_with_rng(config, rng).run(&mutations, |drawn| {
        (target.run)(&mutated(&drawn));
        Ok(())
    });
    if let Err(TestError::Fail(reason, drawn)) = &result {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-found"));
        fs::write(&path, mutated(drawn)).unwrap();
        let (found, kept) = (path.display(), target.corpus());
        panic!(
            "{reason}\nthe input is in {found}; once it is mended, keep it in {}",
            kept.display()
        );
    }
    result.unwrap();
}

macro_rules! targets {
    ($($name:ident: $cases:expr,)*) => {
        $(
            #[test]
            fn $name() {
                fuzzed(stringify!($name), $cases);
            }
        )*

        #[test]
        fn every_target_is_fuzzed() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! {
    packet: 50_000,
    probe: 20_000,
    dlep: 50_000,
    held: 50_000,
    moves: 20_000,
    netlink: 50_000,
    kernel: 50_000,
    rtnetlink: 50_000,
    nft: 1_000,
    firewall: 10_000,
    iptables: 20_000,
    config: 1_000,
    api: 5_000,
    answers: 5_000,
}

#[test]
fn the_inputs_that_are_kept_are_small() {
    let sizes = TARGETS
        .iter()
        .flat_map(|target| fs::read_dir(target.corpus()).unwrap());
    let sizes = sizes.map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(sizes.sum::<u64>() < 512 * 1024);
}
