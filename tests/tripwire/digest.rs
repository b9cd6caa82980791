//! Proves which digests are equal, and that no payload breaks one.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};
use serde::Serialize;
use serde::ser::{Error as _, SerializeMap as _, SerializeSeq as _};
use serde_json::{Value, json};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_breaker::{Digest, Digester, JsonDigest, Reason, Refusal, TripwireLayer};

use crate::support::panic_message;

fn digest<T: Serialize + ?Sized>(value: &T) -> Digest {
    JsonDigest::new().of(value)
}

// ===== 36: hidden repeats =====

#[tokio::test]
async fn the_same_call_in_three_key_orders_with_three_ids_is_refused_at_its_third() {
    let texts = [
        r#"{"id": 1, "tool": "search", "arguments": {"query": "rust", "page": 1}}"#,
        r#"{"tool": "search", "arguments": {"page": 1.0, "query": "rust"}, "id": 2}"#,
        r#"{"arguments": {"query": "rust", "page": 1}, "id": "three", "tool": "search"}"#,
    ];
    let json = JsonDigest::new().without("id");
    let layer = TripwireLayer::new().digest(move |text: &&str| json.of_text(text));
    let calls = std::cell::Cell::new(0);
    let mut tool = layer.layer(service_fn(|_: &str| {
        calls.set(calls.get() + 1);
        std::future::ready(Ok::<_, BoxError>(()))
    }));
    for text in &texts[..2] {
        tool.ready().await.unwrap().call(text).await.unwrap();
    }
    let err = tool
        .ready()
        .await
        .unwrap()
        .call(texts[2])
        .await
        .unwrap_err();
    assert_eq!(
        Refusal::find(&*err).unwrap().reason(),
        Reason::IdenticalCall
    );
    assert_eq!(calls.get(), 2);
}

#[test]
fn what_is_equal_as_json_is_equal_and_what_is_not_is_not() {
    let classes = [
        vec![json!(null)],
        vec![json!(true)],
        vec![json!(false)],
        vec![json!(0), json!(-0.0), json!(0.0)],
        vec![json!(1), json!(1.0), json!(1e0)],
        vec![json!(-1), json!(-1.0)],
        vec![json!(1.5)],
        vec![json!(u64::MAX)],
        vec![json!(u64::MAX - 1)],
        vec![json!(i64::MIN), json!(-9_223_372_036_854_775_808.0)],
        vec![json!(i64::MIN + 1)],
        vec![
            json!(9_007_199_254_740_992_u64),
            json!(9_007_199_254_740_992.0),
        ],
        vec![json!(9_007_199_254_740_993_u64)],
        vec![json!(1e19), json!(10_000_000_000_000_000_000_u64)],
        vec![json!(1.8e38)],
        vec![json!(-1.8e38)],
        vec![json!(1e300)],
        vec![json!("")],
        vec![json!("1")],
        vec![json!("null")],
        vec![json!([])],
        vec![json!({})],
        vec![json!([null])],
        vec![json!([[]])],
        vec![json!([1, 2])],
        vec![json!([2, 1])],
        vec![json!([[1], 2])],
        vec![json!([1, [2]])],
        vec![json!([1, 2, null])],
        vec![json!(["ab", "c"])],
        vec![json!(["a", "bc"])],
        vec![json!({"a": 1})],
        vec![json!({"a": 1, "b": null})],
        vec![json!({"b": 1, "a": null})],
        vec![json!({"a": {"b": 1}})],
        vec![json!({"a": "b"}), json!({"a": "b"})],
        vec![json!({"b": "a"})],
        vec![json!([["a", 1]])],
        vec![json!({"a": 1, "b": 2}), json!({"b": 2.0, "a": 1})],
        vec![json!({"a": 2, "b": 1})],
    ];
    for (i, one) in classes.iter().enumerate() {
        for (j, other) in classes.iter().enumerate() {
            for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
                assert_eq!(digest(a) == digest(b), i == j, "{a} and {b}");
                assert_eq!(
                    JsonDigest::new().of_text(&a.to_string()) == digest(b),
                    i == j,
                    "the text {a} and {b}"
                );
            }
        }
    }
}

#[test]
fn integers_of_128_bits_are_exact_too() {
    for value in [i128::MAX, i128::MIN + 1, i128::from(u64::MAX) + 1] {
        assert_ne!(digest(&value), digest(&(value - 1)));
    }
    assert_ne!(digest(&u128::MAX), digest(&(u128::MAX - 1)));
    assert_eq!(digest(&7_u128), digest(&7_i8));
    assert_eq!(digest(&(1_u128 << 127)), digest(&2_f64.powi(127)));
    assert_eq!(digest(&(1_u128 << 126)), digest(&2_f64.powi(126)));
    assert_eq!(digest(&i128::MIN), digest(&-(2_f64.powi(127))));
    assert_ne!(digest(&2_f64.powi(128)), digest(&2_f64.powi(129)));
}

#[test]
fn what_is_no_number_is_null_and_panics_nobody() {
    for value in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(digest(&value), digest(&()));
        assert_eq!(digest(&vec![value]), digest(&json!([null])));
    }
    assert_eq!(digest(&f32::NAN), digest(&json!(null)));
}

#[test]
fn fields_are_left_out_by_key_at_every_depth_and_by_pointer_at_one_place() {
    let one = json!({"id": 1, "a": [{"id": 2, "b": 3}], "meta": {"at": 4, "c": 5}});
    let other = json!({"a": [{"b": 3}], "meta": {"at": 6, "c": 5}});
    assert_ne!(digest(&one), digest(&other));
    let json = JsonDigest::new().without("id");
    assert_ne!(json.of(&one), json.of(&other));
    let json = json.without_pointer("/meta/at");
    assert_eq!(json.of(&one), json.of(&other));
    assert_ne!(
        json.of(&one),
        json.of(&json!({"a": [{"b": 3}], "meta": {"c": 6}}))
    );

    let elsewhere = |at| json!({"at": at, "x": {"meta": {"at": 1}}});
    assert_ne!(
        json.of(&elsewhere(1)),
        json.of(&elsewhere(2)),
        "its whole path counts"
    );

    let json = JsonDigest::new()
        .without_pointer("/a/1")
        .without_pointer("/m~1n/o~0p");
    assert_eq!(
        json.of(&json!({"a": [1, 2, 3]})),
        json.of(&json!({"a": [1, 9, 3]}))
    );
    assert_ne!(
        json.of(&json!({"a": [1, 2, 3]})),
        json.of(&json!({"a": [9, 2, 3]}))
    );
    assert_ne!(
        json.of(&json!({"b": [1, 2]})),
        json.of(&json!({"b": [1, 3]}))
    );
    assert_ne!(
        json.of(&json!({"x": {"a": [1, 2]}})),
        json.of(&json!({"x": {"a": [1, 3]}}))
    );
    assert_eq!(
        json.of(&json!({"m/n": {"o~p": 1}})),
        json.of(&json!({"m/n": {"o~p": 2}}))
    );
    assert_ne!(
        json.of(&json!({"m/n": {"o": 1}})),
        json.of(&json!({"m/n": {"o": 2}}))
    );
}

#[test]
#[should_panic(expected = "`without_pointer`")]
fn a_pointer_to_everything_is_refused() {
    let _ = JsonDigest::new().without_pointer("");
}

#[test]
fn nonsense_depth_limits_are_refused() {
    for levels in [0, 257, u32::MAX] {
        let message = panic_message(|| JsonDigest::new().depth_limit(levels));
        assert!(message.contains("`depth_limit`"), "{message}");
    }
}

// ===== what is Serialize is digested as the JSON that it becomes =====

#[derive(Clone, Serialize)]
struct Everything {
    number: i16,
    wide: u128,
    ratio: f32,
    letter: char,
    text: &'static str,
    #[allow(clippy::option_option)] // Both leave no trace in JSON.
    some: Option<Option<u8>>,
    none: Option<u8>,
    unit: (),
    nothing: Nothing,
    wrapped: Wrapped,
    pair: (u8, String),
    point: Point,
    shapes: Vec<Shape>,
    bytes: Bytes,
    by_number: BTreeMap<i32, bool>,
    by_flag: HashMap<bool, u8>,
    by_letter: BTreeMap<char, u8>,
    by_shape: BTreeMap<Plain, u8>,
    #[serde(flatten)]
    more: BTreeMap<String, u64>,
}

#[derive(Clone, Serialize)]
struct Nothing;
#[derive(Clone, Serialize)]
struct Wrapped(u64);
#[derive(Clone, Serialize)]
struct Point(i8, i8);
#[derive(Clone, Serialize, PartialEq, Eq, PartialOrd, Ord)]
enum Plain {
    One,
    Two,
}
#[derive(Clone, Serialize)]
enum Shape {
    Empty,
    Circle(u8),
    Line(u8, u8),
    Box { width: u8, height: u8 },
}
#[derive(Clone)]
struct Bytes(&'static [u8]);
impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

fn everything() -> Everything {
    Everything {
        number: -7,
        wide: 1 << 60,
        ratio: 0.5,
        letter: 'é',
        text: "text",
        some: Some(Some(3)),
        none: None,
        unit: (),
        nothing: Nothing,
        wrapped: Wrapped(u64::MAX),
        pair: (1, "two".into()),
        point: Point(-1, 1),
        shapes: vec![
            Shape::Empty,
            Shape::Circle(1),
            Shape::Line(2, 3),
            Shape::Box {
                width: 4,
                height: 5,
            },
        ],
        bytes: Bytes(b"abc"),
        by_number: [(-1, true), (2, false)].into(),
        by_flag: [(true, 1), (false, 2)].into(),
        by_letter: [('x', 1)].into(),
        by_shape: [(Plain::One, 1), (Plain::Two, 2)].into(),
        more: [("extra".to_owned(), 9)].into(),
    }
}

#[test]
fn whatever_is_serialisable_is_digested_as_the_json_that_it_becomes() {
    let typed = everything();
    let value = serde_json::to_value(&typed).unwrap();
    for json in [
        JsonDigest::new(),
        JsonDigest::new()
            .without("width")
            .without("Circle")
            .without("Line"),
        JsonDigest::new()
            .without_pointer("/shapes/3/Box/height")
            .without_pointer("/shapes/2/Line/0"),
        JsonDigest::new().depth_limit(1),
        JsonDigest::new().depth_limit(2),
        JsonDigest::new().depth_limit(3),
        JsonDigest::new().depth_limit(4),
    ] {
        assert_eq!(json.of(&typed), json.of(&value), "{json:?}");
        assert_eq!(
            json.of(&typed),
            json.of_text(&value.to_string()),
            "{json:?}"
        );
    }
    let mut other = everything();
    other.shapes[3] = Shape::Box {
        width: 4,
        height: 6,
    };
    assert_ne!(digest(&typed), digest(&other));
    let json = JsonDigest::new().without_pointer("/shapes/3/Box/height");
    assert_eq!(json.of(&typed), json.of(&other));
}

#[test]
fn a_part_that_cannot_be_serialised_is_one_fixed_value_for_its_tool() {
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut items = serializer.serialize_seq(None)?;
            items.serialize_element(&1)?;
            Err(S::Error::custom("no more"))
        }
    }
    #[derive(Serialize)]
    struct Call<A> {
        tool: &'static str,
        arguments: A,
    }
    fn call<A>(tool: &'static str, arguments: A) -> Call<A> {
        Call { tool, arguments }
    }
    assert_eq!(digest(&call("a", Broken)), digest(&call("a", Broken)));
    assert_ne!(digest(&call("a", Broken)), digest(&call("b", Broken)));
    assert_ne!(
        digest(&call("a", Broken)),
        digest(&json!({"tool": "a", "arguments": [1]}))
    );

    // Keys that are no text.
    let odd: HashMap<Vec<u8>, u8> = [(vec![1], 1)].into();
    let other: HashMap<(), u8> = [((), 1)].into();
    assert_eq!(digest(&odd), digest(&other));
    assert_ne!(digest(&call("a", odd)), digest(&call("b", other)));
    // Texts that are no JSON.
    let json = JsonDigest::new();
    assert_eq!(json.of_text("{"), json.of_text("]"));
    assert_ne!(json.of_text("{"), json.of_text("\"{\""));
}

// ===== no payload breaks it =====

fn nested(depth: usize, innermost: Value) -> Value {
    (0..depth).fold(innermost, |value, level| {
        if level % 2 == 0 {
            Value::Array(vec![value])
        } else {
            let mut map = serde_json::Map::new();
            map.insert("in".into(), value);
            Value::Object(map)
        }
    })
}

/// Takes the value apart in a loop. Its own destructor would recurse once for each level.
fn take_apart(mut value: Value) {
    loop {
        value = match value {
            Value::Array(mut items) => items.pop().unwrap_or_default(),
            Value::Object(map) => map.into_iter().next().map(|(_, v)| v).unwrap_or_default(),
            _ => return,
        };
    }
}

#[test]
fn a_depth_of_ten_thousand_overflows_no_stack_and_is_one_fixed_value_past_the_limit() {
    let one = nested(10_000, json!(1));
    let other = nested(10_000, json!([2, 3]));
    for json in [JsonDigest::new(), JsonDigest::new().depth_limit(256)] {
        assert_eq!(json.of(&one), json.of(&other));
    }
    take_apart(one);
    take_apart(other);
    let json = JsonDigest::new().depth_limit(10);
    for depth in 0..10 {
        assert_ne!(
            json.of(&nested(depth, json!(1))),
            json.of(&nested(depth, json!(2)))
        );
    }
    assert_ne!(
        json.of(&nested(10, json!(1))),
        json.of(&nested(10, json!(2))),
        "scalars are seen"
    );
    assert_eq!(
        json.of(&nested(10, json!([1]))),
        json.of(&nested(10, json!([2])))
    );
    assert_eq!(
        json.of(&nested(11, json!(1))),
        json.of(&nested(11, json!(2)))
    );
    let deep_text = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(json.of_text(&deep_text), json.of_text("["));
}

#[test]
fn wrappers_that_leave_no_trace_overflow_no_stack_either() {
    #[derive(Serialize)]
    struct Link(Option<Box<Link>>);
    let mut chain = Link(None);
    for _ in 0..100_000 {
        chain = Link(Some(Box::new(chain)));
    }
    let _ = digest(&chain);
    while let Some(next) = chain.0.take() {
        chain = *next;
    }
}

#[test]
fn a_payload_of_ten_megabytes_is_no_trouble() {
    let mut long = "x".repeat(10_000_000);
    let before = digest(&long);
    long.push('y');
    assert_ne!(digest(&long), before);

    let mut many = Value::Array((0..500_000).map(|n| json!({"n": n})).collect());
    let before = digest(&many);
    many[499_999]["n"] = json!(0);
    assert_ne!(digest(&many), before);
    many[499_999]["n"] = json!(499_999.0);
    assert_eq!(digest(&many), before);
}

// ===== properties =====

/// JSON whose objects keep the order of their keys and have no key twice. Some integers exceed 53
/// bits.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(Value),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Serialize for Tree {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Tree::Leaf(leaf) => leaf.serialize(serializer),
            Tree::Array(items) => items.serialize(serializer),
            Tree::Object(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl Tree {
    fn shuffled(&self, seed: u64) -> Tree {
        match self {
            Tree::Leaf(leaf) => Tree::Leaf(leaf.clone()),
            Tree::Array(items) => {
                Tree::Array(items.iter().map(|item| item.shuffled(seed)).collect())
            }
            Tree::Object(entries) => {
                let mut entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| (key.clone(), value.shuffled(seed)))
                    .collect();
                let len = entries.len().max(1);
                entries.rotate_left(usize::try_from(seed).unwrap_or(0) % len);
                if seed % 2 == 1 {
                    entries.reverse();
                }
                Tree::Object(entries)
            }
        }
    }

    fn leaves(&mut self) -> Vec<&mut Value> {
        match self {
            Tree::Leaf(leaf) => vec![leaf],
            Tree::Array(items) => items.iter_mut().flat_map(Tree::leaves).collect(),
            Tree::Object(entries) => entries
                .iter_mut()
                .flat_map(|(_, value)| value.leaves())
                .collect(),
        }
    }
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    leaf()
        .prop_map(Tree::Leaf)
        .prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Tree::Array),
                prop::collection::btree_map("[a-c]{0,2}", inner, 0..6)
                    .prop_map(|map| Tree::Object(map.into_iter().collect())),
            ]
        })
}

proptest! {
    #[test]
    fn permuting_keys_never_changes_a_digest(tree in tree(), seed in any::<u64>()) {
        let before = digest(&tree);
        assert_eq!(digest(&tree.shuffled(seed)), before);
        assert_eq!(digest(&serde_json::to_value(&tree).unwrap()), before);
    }

    #[test]
    fn changing_any_leaf_changes_the_digest(tree in tree(), new in leaf()) {
        let before = digest(&tree);
        let count = tree.clone().leaves().len();
        for at in 0..count {
            let mut other = tree.clone();
            let leaf = other.leaves().swap_remove(at);
            let same = digest(leaf) == digest(&new);
            *leaf = new.clone();
            assert_eq!(digest(&other) == before, same, "leaf {at}");
        }
    }

    #[test]
    fn swapping_two_items_of_an_array_changes_the_digest(items in prop::collection::vec(tree(), 2..5)) {
        let mut swapped = items.clone();
        swapped.swap(0, 1);
        let same = digest(&items[0]) == digest(&items[1]);
        assert_eq!(digest(&Tree::Array(items)) == digest(&Tree::Array(swapped)), same);
    }

    #[test]
    fn leaving_out_and_never_having_been_there_are_the_same(tree in tree(), value in leaf()) {
        let json = JsonDigest::new().without("volatile");
        let mut more = tree.clone();
        fn strew(tree: &mut Tree, value: &Value) {
            match tree {
                Tree::Leaf(_) => {}
                Tree::Array(items) => items.iter_mut().for_each(|item| strew(item, value)),
                Tree::Object(entries) => {
                    for (_, item) in entries.iter_mut() {
                        strew(item, value);
                    }
                    entries.insert(0, ("volatile".into(), Tree::Leaf(value.clone())));
                }
            }
        }
        strew(&mut more, &value);
        assert_eq!(json.of(&more), json.of(&tree));
    }
}

#[test]
fn the_stock_digesters_exempt_nobody() {
    assert!(JsonDigest::new().digest(&f64::NAN).is_some());
    assert!(tower_breaker::HashDigest.digest("anything").is_some());
}
