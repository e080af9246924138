//! A server under load, as the options of a trial describe it: for the trial's runs, and for a diagnosis under the same load.

use super::trial_options::{Of, Options, Spacing};
use super::usage::usage;
use crate::printer::Printer;
use allocwall_model::units::count;
use allocwall_trial::batch::Prepared;
use allocwall_trial::load::adapters::Adapter;
use allocwall_trial::load::arrivals::Arrivals;
use allocwall_trial::load::first;
use allocwall_trial::load::metric::Figure;
use allocwall_trial::load::open::Plan;
use allocwall_trial::load::ready::Ready;
use allocwall_trial::load::request::{Ask as HttpAsk, Request};
use allocwall_trial::prepare::Prepare;
use allocwall_trial::server::{self, Load, Read, Server};
use anyhow::Context;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A load's name, and its requests per second.
pub type NamedRate = (String, f64);

pub struct Serving<'a> {
    pub options: &'a Options,
    pub printer: &'a Printer,
    /// The program that is started as keeper.
    pub keeper: &'a Path,
    /// For the arrivals of the requests.
    pub seed: u64,
}

impl Serving<'_> {
    /// The server without rates: see [`Serving::set_rates`]. `figures`: those of --metric.
    pub fn server<'i>(
        &self,
        arms: Vec<Prepared>,
        figures: Vec<Figure>,
        prepare: Option<Prepare>,
        interrupted: &'i AtomicBool,
    ) -> anyhow::Result<Server<'i>> {
        Ok(Server {
            arms,
            keeper_exe: self.keeper.to_owned(),
            ready: self.ready()?,
            patience: self.options.ready_timeout(),
            load: self.load(figures)?,
            rest: self.options.rest(),
            prepare,
            interrupted,
        })
    }

    /// Gives the server plans with these rates, if it is loaded at rates.
    pub fn set_rates(&self, server: &mut Server, rates: &[NamedRate]) -> anyhow::Result<()> {
        let Load::Inside { plans, .. } = &mut server.load else { return Ok(()) };
        let like = self.plan();
        // Times are checked before the server is started for them.
        like.check().map_err(usage).context("--load-time, --warm-up")?;
        *plans = server::plans(rates, &like);
        plans.iter().try_for_each(|(_, plan)| plan.check())?;
        Ok(())
    }

    fn plan(&self) -> Plan {
        Plan {
            arrivals: match self.options.arrivals.unwrap_or_default() {
                Spacing::Poisson => Arrivals::Poisson { seed: self.seed },
                Spacing::Constant => Arrivals::Constant,
            },
            warm_up: self.options.warm_up(),
            window: self.options.load_time(),
            connections: self.options.connections(),
            ..Plan::new(1.0, 0)
        }
    }

    /// The rates before the capacity is known: their names, with one request per second each. Empty if the load has no rates.
    pub fn rates_to_come(&self) -> Vec<NamedRate> {
        match (self.options.of_what(), self.options.rate) {
            (Of::Load, Some(rate)) => vec![(format!("{rate}/s"), rate.0)],
            (Of::Load, None) => self.options.shares().iter().map(|share| (name_of(*share), 1.0)).collect(),
            _ => vec![],
        }
    }

    /// Measures the capacity of the first arm, if a rate depends on it.
    pub fn rates(&self, server: &Server) -> anyhow::Result<Vec<NamedRate>> {
        if self.options.rate.is_some() || self.options.of_what() != Of::Load {
            return Ok(self.rates_to_come());
        }
        self.printer.note("measuring the capacity of the baseline");
        let most = self.options.connections();
        let capacity = server.capacity(0, most)?;
        if capacity.still_rising {
            self.printer.note(&format!(
                "the capacity may be higher: throughput still rose at {}; use --connections to allow more",
                count(most, "connection")
            ));
        }
        let shares = self.options.shares();
        let rate = |share: &f64| (name_of(*share), capacity.per_second() * share);
        let rates: Vec<NamedRate> = shares.iter().map(rate).collect();
        let shown: Vec<String> = rates.iter().map(|(name, rate)| format!("{name} = {rate:.0}")).collect();
        let slower = capacity.slower_crowded().map_or(String::new(), |step| {
            format!(", but only {:.0} with {}", step.per_second, count(step.connections, "connection"))
        });
        self.printer.note(&format!(
            "capacity {:.0} requests/s with {}{slower}; load of all arms: {} requests/s",
            capacity.best.per_second,
            count(capacity.best.connections, "connection"),
            shown.join(", ")
        ));
        Ok(rates)
    }

    fn ready(&self) -> anyhow::Result<Ready> {
        match (&self.options.ready, &self.options.load) {
            (Some(ready), _) => Ready::parse(ready, false).map_err(usage),
            // A TCP connection is enough here; the first load shows whether the requests succeed.
            (None, Some(url)) => Ok(Ready::Tcp(self.request(url)?.address)),
            (None, None) => Err(usage("unknown when the server is ready: use --ready tcp:127.0.0.1:PORT")),
        }
    }

    fn load(&self, figures: Vec<Figure>) -> anyhow::Result<Load> {
        match (&self.options.load, &self.options.load_cmd) {
            (Some(url), _) => {
                let request = self.request(url)?;
                Ok(match self.options.first {
                    Some(requests) => Load::First { request, plan: self.first(requests) },
                    None => Load::Inside { request, plans: vec![] },
                })
            }
            (None, Some(line)) => {
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                let read = if figures.is_empty() {
                    Read::Adapter(Adapter::of_command(&words).map_err(usage)?)
                } else {
                    Read::Figures(figures)
                };
                Ok(Load::Command { line: line.clone(), read, limit: self.options.timeout() })
            }
            (None, None) => Err(usage("no load given: use --load URL or --load-cmd CMD")),
        }
    }

    fn first(&self, requests: u64) -> first::Plan {
        first::Plan {
            requests,
            connections: self.options.connections(),
            limit: self.options.timeout(),
            most_failures: (requests as f64 * server::FAILED_REQUESTS) as u64,
        }
    }

    fn request(&self, url: &str) -> anyhow::Result<Request> {
        let options = self.options;
        let body = match &options.body {
            Some(path) => std::fs::read(path).with_context(|| path.display().to_string())?,
            None => vec![],
        };
        let method = match (&options.method, &options.body) {
            (Some(method), _) => method,
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        let headers = options.header.iter().map(|header| (header.0.clone(), header.1.clone()));
        let headers: Vec<(String, String)> = headers.collect();
        Request::new(&HttpAsk { method, headers: &headers, body: &body, ..HttpAsk::get(url) }).map_err(usage)
    }
}

/// The name of a rate that is a share of the capacity.
fn name_of(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}
