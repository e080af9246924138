//! What handing an object to another CPU costs: nanoseconds on each side, and saturated throughput.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use allocwall_pool::{Pool, Pooled, Returner};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Order([u64; 8]);

impl Order {
    fn new(n: u64) -> Self {
        Order([n; 8])
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("can't pin");
}

trait Make {
    type Object: Send + std::ops::Deref<Target = Order>;
    fn make(&mut self, n: u64) -> Option<Self::Object>;
}
trait Unmake<O>: Send {
    fn unmake(&mut self, object: O);
}
struct Malloc;
impl Make for Malloc {
    type Object = Box<Order>;
    #[inline]
    fn make(&mut self, n: u64) -> Option<Box<Order>> {
        Some(Box::new(Order::new(n)))
    }
}
struct Dropper;
impl<O> Unmake<O> for Dropper {
    #[inline]
    fn unmake(&mut self, object: O) {
        drop(object)
    }
}
impl Make for Pool<Order> {
    type Object = Pooled<Order>;
    #[inline]
    fn make(&mut self, n: u64) -> Option<Pooled<Order>> {
        self.alloc(Order::new(n)).ok()
    }
}
impl Unmake<Pooled<Order>> for Returner<Order> {
    #[inline]
    fn unmake(&mut self, object: Pooled<Order>) {
        self.free(object)
    }
}

const BATCH: usize = 1024;

/// ns per allocation on the owner's side and per free on the other.
fn phased<M: Make, U: Unmake<M::Object>>(mut make: M, mut unmake: U, rounds: usize) -> (f64, f64, f64) {
    let turn = AtomicUsize::new(0);
    let shelf: std::sync::Mutex<Vec<M::Object>> = std::sync::Mutex::new(Vec::with_capacity(BATCH));
    let (mut made, mut freed) = (vec![], vec![]);
    let mut read = vec![];
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            for round in 0..rounds {
                while turn.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop()
                }
                let mut shelf = shelf.lock().unwrap();
                let mut sum = 0;
                let t = Instant::now();
                for o in shelf.iter() {
                    sum += o.0[0] + o.0[7];
                }
                read.push(t.elapsed().as_nanos() as f64 / BATCH as f64);
                std::hint::black_box(sum);
                let t = Instant::now();
                for o in shelf.drain(..) {
                    unmake.unmake(o);
                }
                freed.push(t.elapsed().as_nanos() as f64 / BATCH as f64);
                drop(shelf);
                turn.store(2 * round + 2, Ordering::Release);
            }
        });
        pin(0);
        for round in 0..rounds {
            while turn.load(Ordering::Acquire) != 2 * round {
                std::hint::spin_loop()
            }
            let mut shelf = shelf.lock().unwrap();
            let t = Instant::now();
            for n in 0..BATCH {
                let o = make.make(n as u64);
                if let Some(o) = o {
                    unsafe {
                        shelf.as_mut_ptr().add(n).write(o);
                    }
                } else {
                    panic!()
                }
            }
            made.push(t.elapsed().as_nanos() as f64 / BATCH as f64);
            unsafe { shelf.set_len(BATCH) };
            drop(shelf);
            turn.store(2 * round + 1, Ordering::Release);
        }
    });
    let med = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    (med(&mut made), med(&mut freed), med(&mut read))
}

fn saturated<M: Make, U: Unmake<M::Object>>(mut make: M, mut unmake: U, n: usize) -> f64 {
    let (mut tx, mut rx) = rtrb::RingBuffer::new(1024);
    let go = AtomicBool::new(false);
    let mut out = 0.0;
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            go.store(true, Ordering::Release);
            let mut got = 0;
            let mut sum = 0;
            while got < n {
                if let Ok(o) = rx.pop() {
                    let o: M::Object = o;
                    sum += o.0[0] + o.0[7];
                    unmake.unmake(o);
                    got += 1;
                }
            }
            std::hint::black_box(sum);
        });
        pin(0);
        while !go.load(Ordering::Acquire) {}
        let t = Instant::now();
        for i in 0..n {
            let mut o = loop {
                if let Some(o) = make.make(i as u64) {
                    break o;
                }
            };
            while let Err(rtrb::PushError::Full(back)) = tx.push(o) {
                o = back;
            }
        }
        while tx.slots() < 1024 {}
        out = n as f64 / t.elapsed().as_secs_f64() / 1e6;
    });
    out
}

fn value(n: usize) -> f64 {
    let (mut tx, mut rx) = rtrb::RingBuffer::<Order>::new(1024);
    let go = AtomicBool::new(false);
    let mut out = 0.0;
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            go.store(true, Ordering::Release);
            let mut got = 0;
            let mut sum = 0;
            while got < n {
                if let Ok(o) = rx.pop() {
                    sum += o.0[0] + o.0[7];
                    got += 1;
                }
            }
            std::hint::black_box(sum);
        });
        pin(0);
        while !go.load(Ordering::Acquire) {}
        let t = Instant::now();
        for i in 0..n {
            let mut o = Order::new(i as u64);
            while let Err(rtrb::PushError::Full(back)) = tx.push(o) {
                o = back;
            }
        }
        while tx.slots() < 1024 {}
        out = n as f64 / t.elapsed().as_secs_f64() / 1e6;
    });
    out
}

fn main() {
    let n = 2_000_000;
    let which = std::env::args().nth(1).unwrap_or_default();
    if which == "phased" {
        let mut p = Pool::new(4096).unwrap();
        let r = p.returner();
        println!("phased pool: {:.2?}", phased(p, r, 100000));
        return;
    }
    let mut p = Pool::new(4096).unwrap();
    let r = p.returner();
    println!("sat pool: {:.2?}", saturated(p, r, n));
}
