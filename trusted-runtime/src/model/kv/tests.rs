use super::*;

const SHAPE: Shape = Shape { layers: 2, heads: 2, head_dim: 3 };

/// Writes positions `from .. to`, whose tokens are their numbers, in all layers.
fn write(cache: &mut KvCache, from: usize, to: usize) {
    let width = SHAPE.heads * SHAPE.head_dim;
    cache.reserve(to - from).expect("room");
    for position in from..to {
        for layer in 0..SHAPE.layers {
            let number = |i: usize| (position * 100 + layer * 10 + i) as f32;
            let keys: Vec<f32> = (0..width).map(number).collect();
            let values: Vec<f32> = keys.iter().map(|k| -k).collect();
            cache.write(layer, position, &keys, &values);
        }
    }
}

fn tokens(from: usize, to: usize) -> Vec<u32> {
    (from..to).map(|t| u32::try_from(t).expect("small")).collect()
}

fn fill(cache: &mut KvCache, from: usize, to: usize) {
    write(cache, from, to);
    cache.commit(&tokens(from, to));
}

/// Whether all positions from `from` on are read back.
fn check(cache: &KvCache, from: usize, to: usize) {
    let mut scratch = Zeroizing::default();
    for layer in 0..SHAPE.layers {
        let view = cache.view(layer, from, &mut scratch).expect("pages");
        for head in 0..SHAPE.heads {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (k, v) in view.runs(head, from..to) {
                keys.extend_from_slice(k);
                values.extend_from_slice(v);
            }
            let want = |p: usize, i: usize| (p * 100 + layer * 10 + head * SHAPE.head_dim + i) as f32;
            let want: Vec<f32> = (from..to).flat_map(|p| (0..SHAPE.head_dim).map(move |i| want(p, i))).collect();
            assert_eq!(keys, want);
            assert!(values.iter().zip(&want).all(|(v, w)| *v == -w));
        }
    }
}

#[test]
fn what_is_written_is_read_across_pages_and_windows() {
    let pool = KvPool::new(SHAPE, 9, Box::new(Plaintext));
    let mut cache = pool.cache(Salt::default());
    let mut len = 0;
    for to in [1, 15, 16, 17, 50, 64, 65] {
        write(&mut cache, len, to);
        check(&cache, 0, to);
        cache.commit(&tokens(len, to));
        for from in [0, 1, 15, 16, 17, 33] {
            check(&cache, from.min(to - 1), to);
        }
        assert_eq!((cache.len(), pool.used()), (to, to.div_ceil(PAGE)));
        len = to;
    }
    cache.clear();
    assert_eq!((cache.len(), pool.used(), pool.available()), (0, 4, 9), "four full pages are kept for others");
}

#[test]
fn a_common_beginning_is_shared_within_a_salt() {
    let pool = KvPool::new(SHAPE, 20, Box::new(Plaintext));
    let mut first = pool.cache(Salt::default());
    fill(&mut first, 0, 40);
    let mut second = pool.cache(Salt::default());
    let mut longer = tokens(0, 38);
    assert_eq!(second.reuse(&longer), 32);
    assert_eq!(second.reuse(&longer), 0, "only an empty one takes pages over");
    assert_eq!(pool.used(), 3, "nothing is copied");
    fill(&mut second, 32, 38);
    check(&second, 0, 38);
    longer[20] = 999;
    assert_eq!(pool.cache(Salt::default()).reuse(&longer), 16);
    assert_eq!(pool.cache(Salt::default()).reuse(&tokens(0, 32)), 16, "one token is left to compute");
    assert_eq!(pool.cache(Salt::of(&[0; 32], "")).reuse(&longer), 0);
    let (asked, found) = pool.reused();
    assert_eq!((asked, found), (32 + 32 + 16 + 32, 32 + 16 + 16));
}

#[test]
fn sealed_pages_come_back_and_are_shared_like_others() {
    let dir = tempfile::tempdir().expect("temp dir");
    for store in [Store::memory(), Store::file(&dir.path().join("pages")).expect("a file")] {
        let pool = KvPool::new(SHAPE, 20, Box::new(Sealed::new(store).expect("entropy")));
        let mut first = pool.cache(Salt::default());
        fill(&mut first, 0, 40);
        check(&first, 0, 40);
        check(&first, 20, 40);
        let mut second = pool.cache(Salt::default());
        assert_eq!(second.reuse(&tokens(0, 40)), 32);
        fill(&mut second, 32, 70);
        check(&second, 0, 70);
        drop((first, second));
        let mut third = pool.cache(Salt::of(&[1; 32], ""));
        fill(&mut third, 0, 20 * PAGE);
        check(&third, 0, 20 * PAGE);
    }
}

#[test]
fn sealed_pages_that_are_changed_mixed_up_or_old_are_refused() {
    let store = Store::memory();
    let pool = KvPool::new(SHAPE, 20, Box::new(Sealed::new(store.clone()).expect("entropy")));
    let refused = |cache: &KvCache, layer| {
        let mut scratch = Zeroizing::default();
        let error = cache.view(layer, 0, &mut scratch).err().map(|e| e.to_string()).unwrap_or_default();
        error.contains("was changed, or is an old one")
    };
    let mut old = pool.cache(Salt::default());
    fill(&mut old, 0, 32);
    let mut before = Vec::new();
    store.meddle(|slots| before.clone_from(slots));
    let message = before[0].len() / SHAPE.layers;
    for byte in [0, message - 17, message - 1, message, 2 * message - 1] {
        store.meddle(|slots| slots[0][byte] ^= 1);
        assert!(refused(&old, byte / message), "byte {byte}");
        store.meddle(|slots| slots.clone_from(&before));
    }
    store.meddle(|slots| slots.swap(0, 1));
    assert!(refused(&old, 0), "another page");
    store.meddle(|slots| slots.clone_from(&before));
    store.meddle(|slots| slots[0].rotate_left(message));
    assert!(refused(&old, 0) && refused(&old, 1), "another layer");
    store.meddle(|slots| slots.clone_from(&before));
    check(&old, 0, 32);
    // The same numbers for the same positions, put away again: the old page is not the new one.
    drop(old);
    while pool.available() < 20 || pool.used() > 0 {
        if !pool.prefixes().evict() {
            break;
        }
    }
    let mut new = pool.cache(Salt::default());
    fill(&mut new, 0, 32);
    check(&new, 0, 32);
    store.meddle(|slots| slots.clone_from(&before));
    assert!(refused(&new, 0), "rolled back");
    store.meddle(Vec::clear);
    let mut scratch = Zeroizing::default();
    assert!(new.view(0, 0, &mut scratch).is_err(), "gone");
}

#[test]
fn a_full_disk_keeps_the_page_and_says_so() {
    // Every write to this device fails so.
    let Ok(store) = Store::file(std::path::Path::new("/dev/full")) else { panic!("/dev/full opens") };
    let pool = KvPool::new(SHAPE, 20, Box::new(Sealed::new(store).expect("entropy")));
    let mut cache = pool.cache(Salt::default());
    fill(&mut cache, 0, 17);
    check(&cache, 0, 17);
    let error = cache.reserve(1).expect_err("no room").to_string();
    assert!(error.contains("engine.kv_file /dev/full") && error.contains("No space left"), "{error}");
    assert_eq!((cache.len(), pool.used()), (17, 2));
}

#[test]
fn pages_end_and_kept_ones_make_room() {
    let pool = KvPool::new(SHAPE, 4, Box::new(Plaintext));
    let mut first = pool.cache(Salt::default());
    fill(&mut first, 0, 40);
    let mut second = pool.cache(Salt::of(&[1; 32], "a"));
    assert_eq!((second.missing(33), pool.available()), (3, 1));
    let error = second.reserve(33).expect_err("two pages too few").to_string();
    assert_eq!(error, "all 4 pages for keys and values are taken (engine.kv_memory)");
    drop(first);
    assert_eq!(pool.available(), 3, "one page was taken by then");
    fill(&mut second, 0, 33);
    check(&second, 0, 33);
    let mut third = pool.cache(Salt::default());
    assert!(third.reuse(&tokens(0, 40)) <= 16, "the longest unused page has made room");
}
