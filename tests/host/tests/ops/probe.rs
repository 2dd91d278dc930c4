//! probe
use mx_rec_host_tests::*;
use crate::table::*;
#[test]
fn probe() {
    println!("version {}", version());
    let g = Graph::new();
    let t = Table::new(&g, "t", 4, serde_json::json!({}));
    println!("table {:?} {:?}", g.shape(t.variable), g.shape(t.handle));
    let ids = g.placeholder::<i64>("ids", &Some(vec![3, -1]));
    let n = g.node("MxRecIdOffset", "o").input(t.handle).input(ids).int("create", 1).finish().unwrap();
    println!("offsets {:?} inverse {:?}", g.shape(n.output(0)), g.shape(n.output(1)));
    let e = g.node("MxRecEmbed", "e").input(t.handle).input(t.variable).input(n.output(0)).input(n.output(1)).finish().unwrap();
    println!("embed {:?}", g.shape(e.output(0)));
    let s = Session::new(&g).unwrap();
    let out = s.run(&[(ids, &Tensor::new(&[3, 2], &[1i64, 2, 3, -1, 1, 5]))], &[e.output(0), n.output(1)], &[]).unwrap();
    println!("{:?} {:?} {:?}", out[0].dims(), out[0].values::<f32>(), out[1].values::<i32>());
    let bad = g.placeholder::<i64>("bad", &Some(vec![3, 2]));
    println!("{:?}", g.node("MxRecLookup", "l").input(t.handle).input(t.variable).input(bad).finish().map(|n| g.shape(n.output(0))));
}
