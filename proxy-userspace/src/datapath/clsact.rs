//! Our clsact filters: how they are told from others', found and removed. They carry the programs
//! on kernels without TCX (6.6). A filter cannot be pinned; it stays with its device.

use std::{collections::BTreeMap, fs};

use aya::programs::{
    TcAttachType,
    tc::{SchedClassifierLink, TcHandle},
};
use futures::TryStreamExt as _;
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcMessage, TcOption};

/// Priority of our filters: after the ones that most other tools put at 1.
pub const PRIORITY: u16 = 0x5e1f;

/// Handle of our filters: with the priority it names our filter and no other.
pub const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Removes our filters from every device; quiet where there are none.
pub fn remove() {
    let Ok(devices) = fs::read_dir("/sys/class/net") else { return };
    for device in devices.flatten() {
        let name = device.file_name().to_string_lossy().into_owned();
        for attach_type in [TcAttachType::Ingress, TcAttachType::Egress] {
            // Dropping the link detaches the filter it names; an error means it is not there.
            drop(SchedClassifierLink::attached(&name, attach_type, PRIORITY, HANDLE, None));
        }
    }
}

/// Ids of the programs in our filters, by interface index and hook.
pub type Filters = BTreeMap<(u32, &'static str), u32>;

/// Our filters on these devices, in the current network namespace. Needs a tokio runtime.
pub async fn filters(devices: &[u32]) -> Result<Filters, Box<dyn std::error::Error + Send + Sync>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let mut found = Filters::new();
    for &ifindex in devices {
        for (hook, ingress) in [("tc_egress", false), ("tc_ingress", true)] {
            let request = handle.traffic_filter(i32::try_from(ifindex)?).get();
            let request = if ingress { request.ingress() } else { request.egress() };
            // A device without the qdisc, or one that has gone, answers with an error.
            let filters: Vec<_> = request.execute().try_collect().await.unwrap_or_default();
            let ours = filters.iter().find(|filter| {
                let header = &filter.header;
                // The upper half is the priority, the lower the protocol.
                let handle = TcHandle::new(header.handle.major, header.handle.minor);
                header.info >> 16 == u32::from(PRIORITY) && handle == HANDLE
            });
            if let Some(filter) = ours {
                found.insert((ifindex, hook), program(filter));
            }
        }
    }
    connection.abort();
    Ok(found)
}

/// Id of a filter's program; zero if it has none.
fn program(filter: &TcMessage) -> u32 {
    let options = filter.attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    options
        .flatten()
        .find_map(|option| match option {
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
            _ => None,
        })
        .unwrap_or_default()
}
