//! What `pepd model` takes: a curve of twenty points, and the packets of a path.
//!
//! `cargo bench --bench model`.

#![allow(
    missing_docs,
    reason = "criterion_group! makes a public function without any"
)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pepd_model::law::{Control, Leg, Loss};
use pepd_model::packets::{Chain, Gap, Held, Setup};
use pepd_model::predict::{Path, over_buffer, over_loss};

fn legs() -> [Leg; 2] {
    let leg = |rtt, loss| Leg {
        loss,
        control: Control::Reno,
        rate: Some(8333.0),
        ..Leg::new(rtt)
    };
    [
        leg(0.04, Loss::per_second(0.4)),
        leg(0.02, Loss::per_packet(0.01)),
    ]
}

fn curves(c: &mut Criterion) {
    let mut group = c.benchmark_group("model");
    group.sample_size(10);
    let path = Path {
        buffer: 200.0,
        ..Path::new(&legs())
    };
    group.bench_function("over-loss-20", |b| {
        b.iter(|| over_loss(black_box(&path), 1, [1e-4, 0.2], 20));
    });
    group.bench_function("over-buffer-20", |b| {
        b.iter(|| over_buffer(black_box(&path), [1.0, 1000.0], 20));
    });
    let setup = Setup::new(&legs(), &[Gap::new(200, Held::UnderWay)], 1);
    group.bench_function("packets-of-100-s", |b| {
        b.iter(|| {
            let mut chain = Chain::new(black_box(&setup));
            chain.run(100.0);
            chain.record().throughput()
        });
    });
    group.finish();
}

criterion_group!(benches, curves);
criterion_main!(benches);
