use tempfile::TempDir;

use super::*;

fn leg(congestion: &str, rate: f64) -> Legs {
    let of_leg = Learned {
        congestion: Some(congestion.to_owned()),
        rate: Some(rate),
        rtt: Some(0.6),
        learned: 0.0,
    };
    [("wan".to_owned(), of_leg)].into()
}

fn keep(path: &Path, legs: Legs) {
    let mut kept = Remembered::open(path).unwrap();
    crate::runtime::one_thread()
        .unwrap()
        .block_on(kept.end(legs));
    assert!(kept.is_written);
}

/// Gives what is kept, but for when it was learned.
fn kept(path: &Path) -> Legs {
    let mut legs = Remembered::open(path).unwrap().legs().clone();
    legs.values_mut().for_each(|leg| leg.learned = 0.0);
    legs
}

#[test]
fn what_is_kept_last_is_there_again() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    assert!(kept(&path).is_empty());
    for rate in [8e6, 16e6, 24e6] {
        keep(&path, leg("bbr", rate));
        assert_eq!(kept(&path), leg("bbr", rate));
    }
    // About the same is not written anew, and of what nothing is known now, what was stays.
    keep(&path, leg("bbr", 25e6));
    keep(&path, [("wan".to_owned(), Learned::default())].into());
    assert_eq!(kept(&path), leg("bbr", 24e6));
    let of_leg = &kept(&path)["wan"];
    assert_eq!(of_leg.chosen(), Some(Chosen::Bbr));
    assert_eq!(of_leg.known().map(|it| it.capacity), Some(3e6));
}

#[test]
fn whatever_is_cut_short_one_of_two_is_whole() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    keep(&path, leg("bbr", 8e6));
    let old = std::fs::read(&path).unwrap();
    keep(&path, leg("cubic", 99e6));
    let new = std::fs::read(&path).unwrap();
    let mut seen = [0; 2];
    for cut in 0..new.len() {
        // So much of the newer text has come there.
        let mut torn = new.clone();
        for (at, byte) in torn.iter_mut().enumerate().skip(cut) {
            *byte = old.get(at).copied().unwrap_or(0);
        }
        std::fs::write(&path, &torn).unwrap();
        let legs = kept(&path);
        let is_new = legs == leg("cubic", 99e6);
        assert!(is_new || legs == leg("bbr", 8e6), "{cut}: {legs:?}");
        seen[usize::from(is_new)] += 1;
        if torn == new {
            break;
        }
    }
    assert!(seen[0] > 50 && seen[1] > 0, "{seen:?}");
}

/// Whoever may not write is refused as a full disk refuses.
#[test]
fn what_cannot_be_written_is_tried_again() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    keep(&path, leg("bbr", 8e6));
    let mut kept_open = Remembered::open(&path).unwrap();
    let writable = Arc::clone(&kept_open.file);
    let runtime = crate::runtime::one_thread().unwrap();
    runtime.block_on(async {
        kept_open.file = Arc::new(File::open(&path).unwrap());
        for _ in 0..3 {
            kept_open.keep(leg("cubic", 99e6));
            kept_open.settle().await;
            assert!(!kept_open.is_written && kept_open.is_said_to_fail);
        }
        assert_eq!(kept(&path), leg("bbr", 8e6));
        // The file system has room again, and nothing else was learned since, or nothing at all is known any more.
        kept_open.file = writable;
        kept_open.keep(Legs::new());
        kept_open.settle().await;
    });
    assert!(kept_open.is_written && !kept_open.is_said_to_fail);
    assert_eq!(kept(&path), leg("cubic", 99e6));
}

/// A write that does not come back has the file, and no other is begun.
#[test]
fn what_hangs_is_not_overtaken() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    let mut kept_open = Remembered::open(&path).unwrap();
    let hangs = Arc::clone(&kept_open.file);
    let runtime = crate::runtime::one_thread().unwrap();
    runtime.block_on(kept_open.end(leg("bbr", 8e6)));
    assert!(!kept_open.is_written && kept(&path).is_empty());
    drop(hangs);
    runtime.block_on(kept_open.end(Legs::new()));
    assert_eq!(kept(&path), leg("bbr", 8e6));
}

#[test]
fn what_is_no_text_or_no_file_is_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    for text in [
        "",
        "{",
        "null",
        "\0\0\0",
        "[1]",
        r#"{"number":1,"legs":{"wan":{"learned":9e9}},"end":2}"#,
        r#"{"number":18446744073709551616,"legs":{},"end":0}"#,
        r#"{"number":1,"legs":{"wan":{"rate":"fast"}},"end":1}"#,
    ] {
        std::fs::write(&path, text).unwrap();
        assert!(kept(&path).is_empty(), "{text}");
    }
    std::fs::write(&path, vec![b'['; 1 << 20]).unwrap();
    assert!(kept(&path).is_empty());
    keep(&path, leg("bbr", 8e6));
    assert_eq!(kept(&path), leg("bbr", 8e6));
    for (name, make) in [
        ("link", "ln -s state link"),
        ("fifo", "mkfifo fifo"),
        ("directory", "mkdir directory"),
    ] {
        let made = std::process::Command::new("sh")
            .args(["-c", make])
            .current_dir(directory.path())
            .status();
        assert!(made.unwrap().success());
        let error = Remembered::open(&directory.path().join(name)).unwrap_err();
        assert!(error.starts_with("[node] state: "), "{error}");
    }
}

#[test]
fn what_is_learned_again_is_as_new() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    let old = unix_time() - 2.0 * DAY;
    let mut legs = leg("bbr", 8e6);
    legs.extend([(
        "lan".to_owned(),
        Learned {
            learned: old,
            ..legs["wan"].clone()
        },
    )]);
    legs.get_mut("wan").unwrap().learned = old;
    let text = Text {
        number: 1,
        legs,
        end: 1,
    };
    std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
    keep(&path, leg("bbr", 8e6));
    let kept = Remembered::open(&path).unwrap();
    assert!(kept.legs()["wan"].learned > old + DAY);
    // Of the other nothing was learned.
    assert!((kept.legs()["lan"].learned - old).abs() < 1.0);
}

#[test]
fn what_is_too_old_or_cannot_be_says_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    let at = |ago: f64| {
        let mut legs = leg("bbr", 8e6);
        legs.values_mut()
            .for_each(|leg| leg.learned = unix_time() - ago);
        let text = Text {
            number: 3,
            legs,
            end: 3,
        };
        std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
        kept(&path).len()
    };
    assert_eq!(
        [
            at(60.0),
            at(6.9 * 86_400.0),
            at(7.1 * 86_400.0),
            at(-3600.0)
        ],
        [1, 1, 0, 0]
    );
    for (rate, rtt) in [(0.0, 0.1), (-1.0, 0.1), (1e6, 0.0), (f64::INFINITY, 0.1)] {
        let of_leg = Learned {
            congestion: Some("vegas".to_owned()),
            rate: Some(rate),
            rtt: Some(rtt),
            learned: 0.0,
        };
        assert_eq!((of_leg.known(), of_leg.chosen()), (None, None));
    }
}
