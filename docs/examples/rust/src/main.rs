// SPDX-License-Identifier: Apache-2.0
//! One decode step, as docs/examples/embed.c, and what an error looks like. The argument is the path of libnibble.

mod nibble;

use nibble::{Cache, Device, Error, View};

const TOKENS: usize = 1000;
const KV_HEADS: usize = 2;
const Q_HEADS: usize = 8;
const DIM: usize = 128;

fn run(library: &str) -> Result<(), Error> {
    // Only token 700 holds the key that q asks for.
    let row = KV_HEADS * DIM;
    let k: Vec<f32> = (0..TOKENS * row).map(|i| if i / row == 700 { 1.0 } else { 0.0 }).collect();
    let v: Vec<f32> = (0..TOKENS * row).map(|i| (i / row) as f32 / 1000.0).collect();
    let q = [2.0f32; Q_HEADS * DIM];

    let device = Device::open(library, "sim")?;
    let mut cache = Cache::new(device.clone(), "kv4", KV_HEADS, DIM, TOKENS as u64, 0)?;
    cache.append(&k, &v)?;
    let o = cache.attend(View { data: &q, heads: Q_HEADS, dim: DIM })?;
    println!("o = {:.4} ({:#010x})", o[0], o[0].to_bits());

    if let Err(error) = cache.append(&k[..row], &v[..row]) {
        println!("{}: {error}", device.status_name(error.status));
    }
    Ok(())
}

fn main() {
    let library = std::env::args().nth(1).unwrap_or("libnibble.so.1".into());
    if let Err(error) = run(&library) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
