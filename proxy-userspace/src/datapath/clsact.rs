//! Our clsact filters: how they are told from others', found and removed. They carry the programs
//! on kernels without TCX (6.6). A filter cannot be pinned; it stays with its device.

use std::{collections::BTreeMap, fs};

use aya::programs::{
    TcAttachType,
    tc::{SchedClassifierLink, TcHandle},
};
use futures::TryStreamExt as _;

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

/// Hooks of each device on which a filter of ours is, in the current network namespace. Needs a
/// tokio runtime.
pub async fn hooks(
    devices: &[u32],
) -> Result<BTreeMap<u32, Vec<&'static str>>, Box<dyn std::error::Error + Send + Sync>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let mut found: BTreeMap<u32, Vec<&'static str>> = BTreeMap::new();
    for &ifindex in devices {
        for (hook, ingress) in [("tc_egress", false), ("tc_ingress", true)] {
            let request = handle.traffic_filter(i32::try_from(ifindex)?).get();
            let request = if ingress { request.ingress() } else { request.egress() };
            // A device without the qdisc, or one that has gone, answers with an error.
            let filters: Vec<_> = request.execute().try_collect().await.unwrap_or_default();
            let ours = filters.iter().map(|filter| &filter.header).any(|header| {
                // The upper half is the priority, the lower the protocol.
                let handle = TcHandle::new(header.handle.major, header.handle.minor);
                header.info >> 16 == u32::from(PRIORITY) && handle == HANDLE
            });
            if ours {
                found.entry(ifindex).or_default().push(hook);
            }
        }
    }
    connection.abort();
    Ok(found)
}
