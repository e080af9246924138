use allocwall_core::measure::record::*;
use std::sync::atomic::AtomicBool;
use std::time::*;
fn main(){
    let a: Vec<String> = std::env::args().collect();
    let ask = if a[1]=="--" { Ask::Launch{command: a[2..].iter().map(|s| s.into()).collect(), keep:false} } else {Ask::Pids(vec![a[1].parse().unwrap()])};
    let int = AtomicBool::new(false);
    let t=Instant::now();
    let r = record(Request{ask, window: Duration::from_secs(std::env::var("D").map_or(5,|d| d.parse().unwrap())), output: Some("/tmp/rec.allocwall".into()), prices: Err(allocwall_core::units::Absence::new(allocwall_core::units::Reason::NotFound,"x")), interrupted:&int, progress:&mut |_|{}});
    let r = match r { Ok(r)=>r, Err(e)=>{println!("ERR {e}");return}};
    let rec=&r.recording;
    println!("total {:?} after window {:?} own cpu {} ms lost {} ended {:?}", t.elapsed(), r.after_window, rec.meta.own_cpu_ns/1000000, rec.meta.lost_records, rec.meta.ended);
    println!("samples {} deep {} waits {} frames {} stacks {} modules {} python {} file {} KiB", rec.samples.len(), rec.samples.iter().filter(|s| s.deep).count(), rec.waits.len(), rec.frames.len(), rec.stacks.len(), rec.modules.len(), rec.python.len(), std::fs::metadata("/tmp/rec.allocwall").unwrap().len()/1024);
    println!("sampled cpu {:.3} threads cpu {:.3} ticks cpu {:.3}", rec.samples.len() as f64*rec.meta.sample_period_ns as f64*1e-9, rec.threads.iter().map(|t| t.cpu_ns).sum::<u64>() as f64*1e-9, { let (a,b)=(rec.ticks.first().unwrap(), rec.ticks.last().unwrap()); (b.user_ns+b.system_ns-a.user_ns-a.system_ns) as f64*1e-9});
    for p in &rec.processes { println!("{:?}", p); }
    for p in &rec.probes { println!("  probe {} {:?}", p.name, p.state); }
    println!("counts {:?}", rec.counts); println!("heap {:?}", rec.heap);
    println!("neigh {:?}", rec.neighbours.iter().take(4).collect::<Vec<_>>());
    let full = rec.samples.iter().filter(|s| s.user.is_some_and(|u| rec.stacks[u as usize].complete)).count(); println!("complete {full}, deep complete {}", rec.samples.iter().filter(|s| s.deep && s.user.is_some_and(|u| rec.stacks[u as usize].complete)).count());
    let name=|f:u32| { let f=&rec.frames[f as usize]; match &f.symbol { Some(s)=>s.clone(), None=>format!("{}+{:x}", f.module.map_or("?".into(), |m| rec.modules[m as usize].path.rsplit('/').next().unwrap().to_string()), f.offset)}};
    let mut m=std::collections::HashMap::new();
    for s in &rec.samples { let mut v=vec![]; if let Some(u)=s.user {let st=&rec.stacks[u as usize]; v.extend(st.frames.iter().rev().map(|f| name(*f))); if !st.complete {v.insert(0,"[trunc]".into())}} if let Some(k)=s.kernel {v.extend(rec.stacks[k as usize].frames.iter().rev().map(|f| name(*f)+"_[k]"));} *m.entry(v.join(";")).or_insert(0)+=1;}
    let mut v:Vec<_>=m.into_iter().collect(); v.sort_by_key(|x| std::cmp::Reverse(x.1)); for (k,n) in v.iter().take(12) {println!("{n} {}", &k[k.len().saturating_sub(400)..]);}
    let mut m=std::collections::HashMap::new(); for w in &rec.waits {let mut k=format!("{} {:?} ", w.state, w.syscall); if let Some(u)=w.user {k+=&rec.stacks[u as usize].frames.iter().take(5).map(|f| name(*f)).collect::<Vec<_>>().join("<");} if let Some(u)=w.kernel {k+=" K:"; k+=&rec.stacks[u as usize].frames.iter().take(5).map(|f| name(*f)).collect::<Vec<_>>().join("<");} *m.entry(k).or_insert(0u64)+=w.weight_ns;}
    let mut v:Vec<_>=m.into_iter().collect(); v.sort_by_key(|x| std::cmp::Reverse(x.1)); for (k,n) in v.iter().take(6) {println!("{:.3}s {}", *n as f64*1e-9, k);}
    for p in rec.python.iter().take(2){println!("{:?}",p)}
}
