//! The disks and the network, as parts of the JSON document.

use super::json::{absence, list, measured, number};
use allocwall_model::devices::{Disks, Network, uncounted};
use serde_json::{Value, json};

pub fn disks(disks: &Disks) -> Value {
    json!({
        "over_ns": disks.over_ns,
        "busiest": list(&disks.busiest, |disk| json!({
            "name": disk.name,
            "busy": number(disks.busy(disk)),
            "requests": disk.requests,
            "ms_per_request": disk.ms_per_request().map(number),
            "in_flight": number(disks.in_flight(disk)),
            "bytes_per_s": number(disks.bytes_per_s(disk)),
            "stuck": disk.stuck,
        })),
        "others": disks.others,
        "uncounted": list(&disks.uncounted, |name| json!({
            "name": name,
            "missing": absence(&uncounted(name)),
        })),
    })
}

pub fn network(network: &Network) -> Value {
    json!({
        "pid": network.pid,
        "over_ns": network.over_ns,
        "sent": network.sent,
        "retransmitted": network.retransmitted,
        "events": measured(&network.events, |events| json!({
            "timeouts": events.timeouts,
            "listen_overflows": events.listen_overflows,
            "listen_drops": events.listen_drops,
        })),
        "datagrams": measured(&network.datagrams, |datagrams| json!({
            "received": datagrams.received,
            "sent": datagrams.sent,
            "dropped": datagrams.dropped,
            "overflows": datagrams.overflows,
        })),
        "interfaces": measured(&network.interfaces, |all| json!({
            "packets": all.packets,
            "errors": all.errors,
            "dropped": all.dropped,
            "worst": all.worst,
        })),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use allocwall_model::devices::{Datagrams, Devices, DiskUse, Interfaces, TcpEvents};
    use allocwall_model::units::{Absence, Reason};

    pub fn devices() -> Devices {
        let disk = |name: &str, requests| DiskUse {
            name: name.into(),
            requests,
            request_ms: 30,
            sectors: 2_000,
            busy_ms: 20,
            stuck: 0,
        };
        let busiest = vec![disk("sda", 100), disk("sdb", 0)];
        Devices {
            disks: Ok(Disks {
                over_ns: 1_000_000_000,
                busiest,
                others: 1,
                others_busy_ms: 0,
                uncounted: vec!["sdc".into()],
            }),
            network: Ok(Network {
                pid: 4242,
                over_ns: 1_000_000_000,
                sent: 50,
                retransmitted: 1,
                events: Ok(TcpEvents { timeouts: 1, listen_overflows: 2, listen_drops: 3 }),
                datagrams: Ok(Datagrams { received: 7, sent: 6, dropped: 2, overflows: 1 }),
                interfaces: Ok(Interfaces { packets: 90, errors: 0, dropped: 4, worst: Some("eth0".into()) }),
            }),
        }
    }

    #[test]
    fn figures_have_their_units_and_absent_ones_a_reason() {
        let Devices { disks: read, network: joined } = devices();
        let document = disks(&read.unwrap());
        let sda = &document["busiest"][0];
        assert_eq!((&sda["busy"], &sda["ms_per_request"]), (&json!(0.02), &json!(0.3)));
        assert_eq!((&sda["in_flight"], &sda["bytes_per_s"]), (&json!(0.03), &json!(1_024_000.0)));
        assert_eq!(document["busiest"][1]["ms_per_request"], Value::Null);
        let sdc = &document["uncounted"][0];
        assert_eq!((&sdc["name"], &sdc["missing"]["reason"]), (&json!("sdc"), &json!("disabled")));
        let mut joined = joined.unwrap();
        assert_eq!(network(&joined)["interfaces"]["worst"], "eth0");
        assert_eq!(network(&joined)["datagrams"]["dropped"], 2);
        joined.events = Err(Absence::new(Reason::NotFound, "no file"));
        assert_eq!(network(&joined)["events"]["absent"]["reason"], "not_found");
    }
}
