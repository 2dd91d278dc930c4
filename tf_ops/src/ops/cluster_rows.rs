//! What a parameter server does in a step: `MxRecPull` reads rows by key, `MxRecPush`
//! updates them.

use super::cluster::{put, COUNT, PART, PARTS};
use super::lists::{members, natural, Tensors};
use super::support::on;
use super::update::{OPTIMIZER, UPDATED};
use crate::config::Settings;
use crate::op_def::{Arg, Attr, OpDef};
use crate::shared::Name;
use crate::tables::{Member, Part};
use crate::tf::{Construction, Context, OpKernel};
use crate::threads::pool;
use mx_rec_kernels::{
    pack_rows, Absent, Error, Ids, IdsOf, KeyGradients, KeysOf, Kind, Lease, Optimizer, Partition,
    Result, RowDtype, RowsOf, Table,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The part that a node is for.
pub(super) fn partition(construction: &Construction) -> Result<Partition> {
    Partition::new(
        natural(construction, "part")?,
        natural(construction, "parts")?,
    )
}

/// The parts that a request is for, one after the other.
pub(super) struct Parts(Vec<Partition>);

impl Parts {
    pub(super) fn of(construction: &Construction) -> Result<Parts> {
        let (part, parts) = (
            natural(construction, "part")?,
            natural(construction, "parts")?,
        );
        let parts = (0..natural(construction, "count")?)
            .map(|at| Partition::new(part.saturating_add(at), parts));
        Ok(Parts(parts.collect::<Result<_>>()?))
    }
}

/// The tables of a list of configurations, which is read once as long as it stays the same.
#[derive(Default)]
pub(super) struct Members(Mutex<Option<ReadList>>);

/// A list of configurations as it came, and the members that it names.
struct ReadList {
    text: Vec<u8>,
    members: Arc<Vec<Member>>,
}

impl Members {
    /// The members in the first part, then those in the second, and so on.
    pub(super) fn of(&self, json: &[u8], parts: &Parts) -> Result<Arc<Vec<Member>>> {
        let mut known = self.0.lock();
        if let Some(list) = known.as_ref().filter(|list| list.text == json) {
            return Ok(Arc::clone(&list.members));
        }
        let settings = Settings::parse_list(json)?;
        let members = parts.0.iter().flat_map(|&part| {
            let settings = settings.iter().cloned();
            settings.map(move |one| Member::new(one, part))
        });
        let members: Arc<Vec<Member>> = Arc::new(members.collect());
        *known = Some(ReadList {
            text: json.to_vec(),
            members: Arc::clone(&members),
        });
        Ok(members)
    }
}

/// The keys of each member of requests, which stand one behind the other, in the order of
/// [`Members::of`]: so many of all parts.
pub(super) fn keys_of<'a>(
    request: &'a [i64],
    parts: &Parts,
    members: usize,
    requests: u32,
) -> Result<Vec<&'a [i64]>> {
    let refused = || {
        Error::invalid("a request must be a count for each table, and then so many keys")
            .with("length", request.len())
            .with("tables", members)
    };
    let tables = members / parts.0.len().max(1);
    let mut found = Vec::with_capacity(members);
    let mut rest = request;
    for _ in (0..requests).flat_map(|_| &parts.0) {
        let (counts, behind) = rest.split_at_checked(tables).ok_or_else(refused)?;
        rest = behind;
        for &count in counts {
            let count = usize::try_from(count).map_err(|_| refused())?;
            let (keys, behind) = rest.split_at_checked(count).ok_or_else(refused)?;
            found.push(keys);
            rest = behind;
        }
    }
    if rest.is_empty() {
        return Ok(found);
    }
    Err(refused())
}

pub(super) const CONFIGS: Arg = Arg {
    spec: "configs: uint8",
    shape: "(b)",
    doc: "The configurations of the members' tables: a JSON list of what MxRecTable takes.",
};
pub(super) const REQUEST: Arg = Arg {
    spec: "request: int64",
    shape: "(r)",
    doc: "That of the parts, of MxRecDistinctSplit.",
};
const BIRTHS: Arg = Arg {
    spec: "births: int32",
    shape: "(r)",
    doc:
        "As long as `request`: in the place of each count the number of the content that the part \
          has, in the place of each key its birth, another number whenever it gets a row anew; 0 \
          without a row and where keys get none.",
};
pub(super) const SHARED_ERRORS: &str =
    "`ABORTED` if the process has not got the part: it was started again, \
                             or the chief has not initialized or restored it yet; \
                             `INVALID_ARGUMENT` for another configuration than the one it was made \
                             with.";

/// Which keys get rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Create {
    None,
    All,
    Admitted,
    Initial,
}

/// Rows by key.
pub(crate) struct Pull {
    parts: Parts,
    create: Create,
    requests: u32,
    packed: bool,
    members: Members,
}

impl OpKernel for Pull {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPull",
        doc: "Reads rows by key from the parts of several tables that this process holds.",
        inputs: &[CONFIGS, REQUEST],
        outputs: &[
            Arg {
                spec: "rows: float",
                shape: "(f)",
                doc: "Of the first part the rows of the first member, then those of the second, \
                      and so on; then those of the second part. Behind them those of the next \
                      request. With `packed` the bits of two values are one float of a row whose \
                      table has 2 bytes a value: the first half of the columns, rounded up, in the \
                      lower halves of the words, the others in the upper ones.",
            },
            BIRTHS,
        ],
        attrs: &[
            PART,
            PARTS,
            Attr {
                spec: "create: int",
                doc: "1: unknown keys get rows; 0: they have none and read as zeros; 2: those get \
                      rows that MxRecPartObserve has counted often enough, and others read as \
                      zeros; 3: they have none and read as what a row would start with.",
            },
            COUNT,
            Attr {
                spec: "requests: int >= 1 = 1",
                doc: "How many requests `request` has, one behind the other.",
            },
            Attr {
                spec: "packed: int = 0",
                doc: "1: rows of 2 bytes a value are sent as such; 0: all are sent as floats.",
            },
        ],
        errors:
            "`ABORTED` if the process has not got the part: it was started again, or the chief \
                 has not initialized or restored it yet; `INVALID_ARGUMENT` for another \
                 configuration than the one it was made with; `RESOURCE_EXHAUSTED` if new rows \
                 would exceed the part's capacity. No key of any table then gets a row; with \
                 `create` 2 those of members before may have got some.",
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let create = match construction.int("create")? {
            0 => Create::None,
            1 => Create::All,
            2 => Create::Admitted,
            3 => Create::Initial,
            other => return Err(Error::invalid("create must be 0 to 3").with("create", other)),
        };
        Ok(Self {
            parts: Parts::of(construction)?,
            create,
            requests: natural(construction, "requests")?,
            packed: construction.int("packed")? != 0,
            members: Members::default(),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let (configs, request) = (context.input(0)?, context.input(1)?);
        let members = self.members.of(configs.values::<u8>()?, &self.parts)?;
        let keys = request.values::<i64>()?;
        let keys = keys_of(keys, &self.parts, members.len(), self.requests)?;
        let parts = members
            .iter()
            .map(Member::find)
            .collect::<Result<Vec<_>>>()?;
        let parts: Vec<Arc<Part>> = parts.iter().cycle().take(keys.len()).cloned().collect();
        let tables = members.len() / self.parts.0.len().max(1);
        let mut births = context.allocate::<i32>(&request.dims())?;
        let pairs = || parts.iter().zip(&keys);
        let sizes: Vec<usize> = pairs()
            .map(|(part, keys)| self.dtype(part).words(part.table.dim()) * keys.len())
            .collect();
        let mut rows = context.allocate::<f32>(&[sizes.iter().sum::<usize>() as i64])?;
        let mut rest = rows.values();
        let mut sent = Vec::with_capacity(parts.len());
        for size in sizes {
            let (front, behind) = rest.split_at_mut_checked(size).unwrap_or_default();
            sent.push(front);
            rest = behind;
        }
        // Rows that are sent in other words than floats are read first.
        let is_packed = |part: &Part| self.dtype(part) != RowDtype::Float32;
        let floats = pairs().filter(|(part, _)| is_packed(part));
        let floats = floats.map(|(part, keys)| vec![0.0; part.table.dim() * keys.len()]);
        let mut floats: Vec<Vec<f32>> = floats.collect();
        let mut read = floats.iter_mut();
        let mut packed = Vec::new();
        let mut outs = Vec::with_capacity(parts.len());
        for (part, sent) in parts.iter().zip(sent) {
            match is_packed(part).then(|| read.next()).flatten() {
                None => outs.push(sent),
                Some(floats) => {
                    outs.push(floats);
                    packed.push((part, sent));
                }
            }
        }
        let known = if matches!(self.create, Create::All | Create::Admitted) {
            Some(read_new(
                &parts,
                &keys,
                self.create == Create::Admitted,
                outs,
            )?)
        } else {
            let group: Vec<KeysOf<'_>> = parts
                .iter()
                .zip(&keys)
                .map(|(part, keys)| KeysOf {
                    table: &part.table,
                    ids: Ids::I64(keys),
                    absent: match self.create {
                        Create::Initial => Absent::Initial(part.table.config()),
                        _ => Absent::Zeros,
                    },
                    bags: None,
                })
                .collect();
            Table::find_many(pool()?, &group, outs)?;
            None
        };
        for ((part, sent), floats) in packed.into_iter().zip(&floats) {
            pack_rows(pool()?, self.dtype(part), part.table.dim(), floats, sent)?;
        }
        let mut rest = births.values();
        for (at, parts) in parts.chunks(tables.max(1)).enumerate() {
            let contents: Vec<i32> = parts.iter().map(|part| part.content).collect();
            rest = put(rest, &contents)?;
            for at in at * tables..at * tables + parts.len() {
                let known = known.as_ref().and_then(|all| all.get(at));
                let unknown = || vec![0; keys.get(at).map_or(0, |keys| keys.len())];
                rest = put(rest, &known.cloned().unwrap_or_else(unknown))?;
            }
        }
        context.set(0, rows)?;
        context.set(1, births)
    }
}

impl Pull {
    /// As what rows of a table are sent.
    fn dtype(&self, part: &Part) -> RowDtype {
        match self.packed {
            true => part.table.config().row_storage.dtype,
            false => RowDtype::Float32,
        }
    }
}

/// Reads rows; unknown keys get some first, or those of them that are admitted. Returns the births
/// of the keys.
fn read_new(
    parts: &[Arc<Part>],
    keys: &[&[i64]],
    by_admission: bool,
    outs: Vec<&mut [f32]>,
) -> Result<Vec<Vec<i32>>> {
    let mut inverses: Vec<Vec<i32>> = keys.iter().map(|keys| vec![0; keys.len()]).collect();
    let group = parts.iter().zip(keys).zip(&mut inverses);
    // Held until the rows are read: none of them becomes that of another key meanwhile.
    let leases = if by_admission {
        let admitted = group.map(|((part, keys), inverse)| {
            let places: Vec<i32> = (0..inverse.len()).map(|at| at as i32).collect();
            on(&part.table, || {
                part.table.admit(pool()?, keys, None, &places, inverse)
            })
        });
        admitted.collect::<Result<Vec<_>>>()?
    } else {
        let group = group.map(|((part, keys), inverse)| IdsOf {
            table: &part.table,
            ids: Ids::I64(keys),
            inverse,
        });
        Table::lease_many(pool()?, group.collect(), None)?
    };
    let found: Vec<RowsOf<'_>> = parts
        .iter()
        .zip(&leases)
        .zip(&inverses)
        .map(|((part, lease), inverse)| RowsOf {
            table: &part.table,
            offsets: lease.offsets(),
            inverse,
            bags: None,
        })
        .collect();
    Table::embed_many(pool()?, &found, outs, Vec::new())?;
    let births = found.iter().map(|rows| {
        let births = rows.table.births(rows.offsets);
        let of = |&place: &i32| usize::try_from(place).ok().and_then(|at| births.get(at));
        let inverse = rows.inverse.iter();
        inverse
            .map(|place| of(place).copied().unwrap_or(0))
            .collect()
    });
    Ok(births.collect())
}

/// One step of an optimizer by key.
pub(crate) struct Push {
    optimizer: &'static Optimizer,
    parts: Parts,
    creates: bool,
    groups: Vec<Members>,
}

/// The update of one table.
struct Update<'a> {
    part: Arc<Part>,
    grads: Vec<KeyGradients<'a>>,
}

impl OpKernel for Push {
    const DEF: &'static OpDef = &OpDef {
        name: "MxRecPush",
        doc:
            "MxRecUpdate by key in the parts of several tables that this process holds. Gradients \
              of one key are summed in the order of the requests. A gradient reaches the row that \
              was pulled: where the key has lost it meanwhile, or was given none, the gradient is \
              dropped. Pushes of several workers wait for each other for as long as one of them \
              updates the same part of a table.",
        inputs: &[
            PUSH_CONFIGS,
            REQUESTS,
            PUSH_BIRTHS,
            GRADS,
            Arg {
                spec: "hyper: float",
                shape: "(h)",
                doc: "The optimizer's numbers.",
            },
        ],
        outputs: &[UPDATED],
        attrs: &[GROUPS, PART, PARTS, COUNT, CREATE, OPTIMIZER],
        errors: PUSH_ERRORS,
        ..OpDef::STATEFUL
    };

    fn create(construction: &Construction) -> Result<Self> {
        let groups = members(construction)?;
        Ok(Self {
            optimizer: Optimizer::of(construction.int("optimizer")?)?,
            parts: Parts::of(construction)?,
            creates: construction.int("create")? != 0,
            groups: (0..groups).map(|_| Members::default()).collect(),
        })
    }

    fn compute(&self, context: &Context) -> Result<()> {
        let groups = self.groups.len();
        let mut inputs = Tensors::of(context);
        let (configs, requests) = (inputs.list(groups)?, inputs.list(groups)?);
        let births = inputs.list(groups)?;
        let (grads, hyper) = (inputs.one()?, inputs.one()?);
        let hyper = hyper.values::<f32>()?;
        let mut rest = grads.values::<f32>()?;
        let given = rest.len();
        let mut asked = Vec::with_capacity(groups);
        let inputs = configs.iter().zip(&requests).zip(&births);
        for (((configs, request), births), known) in inputs.zip(&self.groups) {
            let members = known.of(configs.values::<u8>()?, &self.parts)?;
            let (request, births) = (request.values::<i64>()?, births.values::<i32>()?);
            let keys = keys_of(request, &self.parts, members.len(), 1)?;
            let births = Born::of_each(births, &keys, members.len() / self.parts.0.len().max(1))?;
            asked.push((members, keys, births));
        }
        let mut updates: Vec<Update<'_>> = Vec::new();
        let count = self.parts.0.len();
        for part in 0..count {
            for (members, keys, births) in &asked {
                let tables = members.len() / count;
                let of_part = members.iter().zip(keys).zip(births);
                for ((member, keys), born) in of_part.skip(part * tables).take(tables) {
                    let part = member.find()?;
                    born.check(&member.name, &part)?;
                    let floats = keys.len().saturating_mul(part.table.dim());
                    let Some((own, behind)) = rest.split_at_checked(floats) else {
                        return Err(unequal(given));
                    };
                    rest = behind;
                    // A key that gets its row here was read without one.
                    let births = born.births.filter(|_| !self.creates);
                    let one = KeyGradients {
                        keys,
                        grads: own,
                        births,
                    };
                    match updates
                        .iter_mut()
                        .find(|update| Arc::ptr_eq(&update.part, &part))
                    {
                        Some(update) => update.grads.push(one),
                        None => updates.push(Update {
                            part,
                            grads: vec![one],
                        }),
                    }
                }
            }
        }
        if !rest.is_empty() {
            return Err(unequal(given));
        }
        let optimizer = self.optimizer.step(hyper)?;
        let pushes: Vec<mx_rec_kernels::Push<'_>> = updates
            .iter()
            .map(|update| mx_rec_kernels::Push {
                table: &update.part.table,
                grads: update.grads.clone(),
                optimizer: optimizer.as_ref(),
            })
            .collect();
        // Held until the rows are updated: none of them becomes that of another key meanwhile.
        let _leases = if self.creates {
            Table::expect_pushes(&pushes)?;
            make_rows(&updates)?
        } else {
            Vec::new()
        };
        let done = Table::push_many(pool()?, &pushes)?;
        context.set_scalar(0, done.updated as i64)
    }
}

/// What the pull that a gradient is of has seen of a table's part.
struct Born<'a> {
    /// The number of the part's content; none if it is not known.
    content: Option<i32>,
    /// The births of the keys.
    births: Option<&'a [i32]>,
}

impl<'a> Born<'a> {
    /// That of each of `keys`, which are those of `tables` tables in the first part, then those in
    /// the second, and so on.
    fn of_each(births: &'a [i32], keys: &[&[i64]], tables: usize) -> Result<Vec<Born<'a>>> {
        let length = keys.iter().map(|keys| keys.len() + 1).sum::<usize>();
        if births.is_empty() {
            return Ok(keys.iter().map(|_| Born::UNKNOWN).collect());
        }
        let refused = || {
            Error::invalid("births must be as long as its request, or empty")
                .with("births", births.len())
                .with("request", length)
        };
        let mut rest = births;
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(tables.max(1)) {
            let (contents, behind) = rest.split_at_checked(keys.len()).ok_or_else(refused)?;
            rest = behind;
            for (keys, &content) in keys.iter().zip(contents) {
                let (own, behind) = rest.split_at_checked(keys.len()).ok_or_else(refused)?;
                rest = behind;
                found.push(Born {
                    content: Some(content),
                    births: Some(own),
                });
            }
        }
        match rest.is_empty() {
            true => Ok(found),
            false => Err(refused()),
        }
    }

    const UNKNOWN: Born<'static> = Born {
        content: None,
        births: None,
    };

    /// Refuses a part that has another content than the one that was read.
    fn check(&self, name: &Name, part: &Part) -> Result<()> {
        match self.content.filter(|&content| content != part.content) {
            None => Ok(()),
            Some(_) => Err(name.of(Error::new(
                Kind::Aborted,
                "the table was replaced (restored or cleared) after this step looked its keys up; \
                 nothing was changed, and the step can be run again",
            ))),
        }
    }
}

/// Gives the keys of updates rows, those of all tables or of none.
fn make_rows(updates: &[Update<'_>]) -> Result<Vec<Lease>> {
    let keys = || {
        updates
            .iter()
            .flat_map(|update| update.grads.iter().map(move |one| (&update.part, one.keys)))
    };
    let mut inverses: Vec<Vec<i32>> = keys().map(|(_, keys)| vec![0; keys.len()]).collect();
    let group = keys().zip(&mut inverses);
    let group = group.map(|((part, keys), inverse)| IdsOf {
        table: &part.table,
        ids: Ids::I64(keys),
        inverse,
    });
    Table::lease_many(pool()?, group.collect(), None)
}

fn unequal(floats: usize) -> Error {
    Error::invalid("grads must be a row for each key of all requests").with("floats", floats)
}

const PUSH_CONFIGS: Arg = Arg {
    spec: "configs: N * uint8",
    shape: "N times (b)",
    doc: "For each request the configurations of its tables, as MxRecPull takes them.",
};
const REQUESTS: Arg = Arg {
    spec: "requests: N * int64",
    shape: "N times (r)",
    doc: "Those of the parts, of MxRecDistinctSplit.",
};
const PUSH_BIRTHS: Arg = Arg {
    spec: "births: N * int32",
    shape: "N times (r) or (0)",
    doc: "For each request what MxRecPull gave beside its rows; without numbers where gradients \
          are not those of a pull: these reach the rows that their keys have now.",
};
const GRADS: Arg = Arg {
    spec: "grads: float",
    shape: "(f)",
    doc:
        "The gradients of the keys of the first part, in the order of the requests, then those of \
          the second: of MxRecPackGradients.",
};
const PUSH_ERRORS: &str =
    "`ABORTED` if the process has not got the part: it was started again, or the chief has not \
     initialized or restored it yet, or if the part was restored since the pull; \
     `INVALID_ARGUMENT` for another configuration than the one it was made with; with `create`, \
     `RESOURCE_EXHAUSTED` if new rows would exceed the part's capacity: then no row of any table \
     has changed.";
const GROUPS: Attr = Attr {
    spec: "N: int >= 1",
    doc: "Requests.",
};
const CREATE: Attr = Attr {
    spec: "create: int = 0",
    doc: "1: keys without a row get one first; 0: their gradients are dropped and counted.",
};
