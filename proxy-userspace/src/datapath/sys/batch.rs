//! Many rows in one system call; aya 0.16 has none of these either.

use std::{io, mem::MaybeUninit, os::fd::BorrowedFd};

use proxy_common::Row;

use super::{bpf, delete, raw, update};

// Commands of enum bpf_cmd, uapi/linux/bpf.h.
const BPF_MAP_LOOKUP_BATCH: u32 = 24;
const BPF_MAP_UPDATE_BATCH: u32 = 26;
const BPF_MAP_DELETE_BATCH: u32 = 27;

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Writes many rows with one call each few thousand. A kernel or map type without batches
/// (before 5.6) gets them one by one.
pub fn update_batch<K: Row, V: Row>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<()> {
    assert_eq!(keys.len(), values.len(), "a value for each key");
    let mut done = 0;
    while done < keys.len() {
        let count = keys.len() - done;
        let mut attr = BatchAttr {
            keys: keys[done..].as_ptr() as u64,
            values: values[done..].as_ptr() as u64,
            count: count as u32,
            map_fd: raw(map),
            ..Default::default()
        };
        match bpf(BPF_MAP_UPDATE_BATCH, &mut attr) {
            Ok(_) => return Ok(()),
            Err(error) if no_batch(&error) => {
                for (key, value) in keys[done..].iter().zip(&values[done..]) {
                    update(map, key, value)?;
                }
                return Ok(());
            }
            // The kernel says how many rows went in before the one that failed; a batch that was
            // merely interrupted goes on from there.
            Err(error) if error.kind() == io::ErrorKind::Interrupted && attr.count > 0 => {
                done += attr.count as usize;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Deletes many rows; rows that are not there do not matter.
pub fn delete_batch<K: Row>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    let mut done = 0;
    while done < keys.len() {
        let mut attr = BatchAttr {
            keys: keys[done..].as_ptr() as u64,
            count: (keys.len() - done) as u32,
            map_fd: raw(map),
            ..Default::default()
        };
        match bpf(BPF_MAP_DELETE_BATCH, &mut attr) {
            Ok(_) => return Ok(()),
            Err(error) if no_batch(&error) => {
                for key in &keys[done..] {
                    delete(map, key)?;
                }
                return Ok(());
            }
            // Stops at the first row that is not there: step over it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                done += attr.count as usize + 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn no_batch(error: &io::Error) -> bool {
    // ENOTSUPP (524) is kernel-internal, and leaks out of map types without the operation.
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | 524))
}

/// Reads a map in pieces of about `chunk` rows, handing each piece to `each`. Rows written or
/// deleted meanwhile may be seen or not.
pub fn for_each_chunk<K: Row, V: Row>(
    map: BorrowedFd<'_>,
    chunk: usize,
    mut each: impl FnMut(&[(K, V)]),
) -> io::Result<()> {
    // The cursor is opaque: four bytes for hash maps, a key for arrays.
    let mut cursor = [0u8; 64];
    let mut started = false;
    let mut size = chunk.max(1);
    loop {
        let mut keys: Vec<MaybeUninit<K>> = Vec::with_capacity(size);
        let mut values: Vec<MaybeUninit<V>> = Vec::with_capacity(size);
        let mut next = cursor;
        let mut attr = BatchAttr {
            in_batch: if started { cursor.as_ptr() as u64 } else { 0 },
            out_batch: next.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: size as u32,
            map_fd: raw(map),
            ..Default::default()
        };
        let last = match bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // One hash bucket holds more rows than fit: nothing was read, ask for more.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                size *= 2;
                continue;
            }
            Err(error) => return Err(error),
        };
        let count = (attr.count as usize).min(size);
        let rows: Vec<(K, V)> = (0..count)
            .map(|i| {
                // SAFETY: the kernel has written `count` keys and values (sizes checked by the
                // opener of the map) into memory with room for `size`.
                unsafe {
                    (
                        keys.as_ptr().add(i).cast::<K>().read(),
                        values.as_ptr().add(i).cast::<V>().read(),
                    )
                }
            })
            .collect();
        if !rows.is_empty() {
            each(&rows);
        }
        if last {
            return Ok(());
        }
        cursor = next;
        started = true;
    }
}
