"""`python -m mx_rec run`: the program is itself but for its tables; its options; the report at its end."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

import support

HERE = os.path.dirname(os.path.abspath(__file__))

# What a program without TensorFlow sees of its process.
SEEN = """
    import json, os, sys
    print(json.dumps({
        "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path,
        "loaded": sorted(one for one in sys.modules if one.split(".")[0] in ("mx_rec", "tensorflow")),
        "environment": {one: os.environ.get(one) for one in ("PYTHONPATH", "MXREC_RUN")},
        "optimize": sys.flags.optimize}))
"""

# A session program: an embedding of 20,000 rows, which trains.
TRAINS = """
    import json, os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow.compat.v1 as tf
    if hasattr(tf, "disable_v2_behavior") and not tf.__version__.startswith("1."):
        tf.disable_v2_behavior()
    ids = tf.placeholder(tf.int64, [None])
    table = tf.get_variable("users", [20000, 4], initializer=tf.constant_initializer(0.25))
    stays = tf.get_variable("items", [20000, 4], initializer=tf.constant_initializer(0.25))
    rows = tf.nn.embedding_lookup(table, ids)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - 3.0)) + tf.reduce_mean(tf.square(stays))
    train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [float(session.run([loss, train], {ids: [1, 2, 19999, 2]})[0]) for _ in range(5)]
    print(json.dumps(losses))
"""


def write(directory, name, text):
    path = os.path.join(str(directory), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    support.write(path, textwrap.dedent(text))
    return path


def command(*arguments):
    return [sys.executable, "-W", "ignore", "-m", "mx_rec", "run"] + [str(one) for one in arguments]


def ran(arguments, **options):
    """A process that has ended, with its output as text."""
    return subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          timeout=200, **options)


def in_environment(*arguments, children=False, report="text", cwd=None):
    """A program in the process that the command would have become: quicker, and what the command does last."""
    from mx_rec.launch.options import Launch
    from mx_rec.launch.start import environment
    from mx_rec.stock.options import StockTables

    launch = Launch(StockTables(), True, children, report)
    return ran([sys.executable, "-W", "ignore"] + [str(one) for one in arguments], env=environment(launch), cwd=cwd)


@pytest.fixture
def refused(capsys):
    """A function that returns what the command says of arguments that it refuses."""
    from mx_rec.launch.start import run

    def text(*arguments):
        try:
            assert run([str(one) for one in arguments]) == 2
        except SystemExit as end:
            assert end.code == 2
        return capsys.readouterr().err

    return text


def test_a_program_is_itself_from_its_first_line(tmp_path):
    script = write(tmp_path, "program.py", SEEN)
    mine = json.loads(ran([sys.executable, "-O", script, "--lr", "0.1", "--", "-m"]).stdout)
    arguments = command("--least-rows", 5, script, "--lr", "0.1", "--", "-m")
    done = ran(arguments[:1] + ["-O"] + arguments[1:])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == mine
    assert mine["argv"] == [script, "--lr", "0.1", "--", "-m"] and mine["loaded"] == []
    assert done.stderr == ""


def test_the_command_itself_reads_its_options_without_tensorflow():
    """It is a process that ends when the program begins: an import of TensorFlow there is paid for nothing."""
    for form in (["-m", "mx_rec"], ["-mmx_rec"]):
        done = ran([sys.executable, "-X", "importtime"] + form + ["run", "--help"])
        assert done.returncode == 0 and done.stdout.startswith("usage: python -m mx_rec run"), done.stderr
        loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "mx_rec.launch.start" in loaded and not loaded & {"tensorflow", "tensorflow_core", "mx_rec.plugin"}


@pytest.mark.long
def test_a_package_with_a_command_run_has_all_of_mx_rec(tmp_path):
    write(tmp_path, "own/__init__.py", "import mx_rec")
    write(tmp_path, "own/__main__.py", "import mx_rec, sys\nprint(hasattr(mx_rec, 'plugin'), sys.argv[1:])\n")
    for arguments in (["run", "a"], ["-m", "mx_rec", "run"], ["run", "-m", "mx_rec", "run"]):
        done = ran([sys.executable, "-W", "ignore", "-m", "own"] + arguments, cwd=str(tmp_path))
        assert done.stdout == "True {}\n".format(arguments), done.stderr


def test_a_module_is_run_as_python_runs_it(tmp_path):
    write(tmp_path, "package/__init__.py", "")
    write(tmp_path, "package/train.py", SEEN)
    mine = json.loads(ran([sys.executable, "-m", "package.train", "a", "-m"], cwd=str(tmp_path)).stdout)
    done = ran(command("-m", "package.train", "a", "-m"), cwd=str(tmp_path))
    assert json.loads(done.stdout) == mine and mine["argv"][1:] == ["a", "-m"], done.stderr


@pytest.mark.parametrize("end, code", [
    ("sys.exit(7)", 7), ("sys.exit('a reason')", 1), ("1 / 0", 1), ("os._exit(3)", 3),
    ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM), ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", None),
])
def test_exit_codes_tracebacks_and_signals_are_the_programs_own(tmp_path, end, code):
    script = write(tmp_path, "program.py", "import os, signal, sys, time\nprint('begun', flush=True)\n" + end + "\n")
    mine, done = ran([sys.executable, script]), in_environment(script)
    assert (done.returncode, done.stdout, done.stderr) == (mine.returncode, mine.stdout, mine.stderr)
    assert code is None or done.returncode == code


def test_a_program_trains_on_tables_and_the_end_says_so(tmp_path):
    script = write(tmp_path, "program.py", TRAINS)
    mine = json.loads(ran([sys.executable, "-W", "ignore", script]).stdout)
    done = ran(command(script))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(mine, rel=1e-5)
    last = done.stderr[done.stderr.index("\nmx_rec: ") + 1:].splitlines()
    assert last[0].startswith("mx_rec: 1 of 2 variables of the size and name asked for was a table; peak memory ")
    assert last[1].startswith("  items [20000, 4] stayed TensorFlow's: its gradient is dense")
    assert last[2].startswith("  users [20000, 4]: a table, adagrad, 3 rows in ") and last[2].endswith(
        "where the variable with its slots takes 0.6 MiB")


@pytest.mark.long
def test_a_report_is_a_file_and_comes_after_an_error_as_well(tmp_path):
    report = os.path.join(str(tmp_path), "report.json")
    script = write(tmp_path, "program.py", TRAINS + "    raise KeyError('at the end')\n")
    done = in_environment(script, report=report)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'at the end'")
    said = support.json_of(report)
    assert [(one["name"], one["table"] != "") for one in said["variables"]] == [("items", False), ("users", True)]
    users = said["variables"][1]
    assert users["optimizer"] == "adagrad" and users["rows"] == 3 and users["bytes"] > 0 and users["shape"] == [20000, 4]
    assert said["peak_bytes"] > 2 ** 26 and said["seconds"] > 0


@pytest.mark.long
def test_nothing_is_said_where_it_is_not_wanted(tmp_path):
    script = write(tmp_path, "program.py", TRAINS)
    assert "\nmx_rec: " not in in_environment(script, report="").stderr


@pytest.mark.long
def test_a_program_that_calls_init_has_its_own_settings_and_the_tables(tmp_path):
    script = write(tmp_path, "program.py", """
        import tensorflow as tf
        from mx_rec.util.initialize import ConfigInitializer, init
        init(train_steps=7)
        config = ConfigInitializer.get_instance()
        assert config.train_steps == 7 and config.stock_tables.least_rows == 10000
        try:
            init()
        except EnvironmentError:
            print("once")
    """)
    done = in_environment(script)
    assert done.stdout == "once\n", done.stderr
    script = write(tmp_path, "other.py", """
        import tensorflow as tf
        from mx_rec.util.initialize import ConfigInitializer, init
        init(stock_tables=False)
        assert ConfigInitializer.get_instance().stock_tables is None
        print("none")
    """)
    assert in_environment(script).stdout == "none\n"


CHILD = """
    import os, subprocess, sys
    code = "import os, sys; import tensorflow; print('mx_rec' in sys.modules, os.environ.get('PYTHONPATH'))"
    sys.stdout.write(subprocess.check_output([sys.executable, "-W", "ignore", "-c", code]).decode())
"""


@pytest.mark.long
def test_child_processes_inherit_only_when_asked(tmp_path):
    script = write(tmp_path, "program.py", CHILD)
    alone = in_environment(script)
    assert alone.stdout == "False {}\n".format(os.environ.get("PYTHONPATH")), alone.stderr
    inherited = in_environment(script, children=True)
    assert inherited.stdout.startswith("True "), inherited.stderr
    assert "mx_rec, process " in inherited.stderr


def test_a_sitecustomize_of_the_user_still_runs(tmp_path, monkeypatch):
    write(tmp_path, "site/sitecustomize.py", "import sys\nsys.of_the_user = __file__\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(
        [os.path.join(str(tmp_path), "site"), os.environ.get("PYTHONPATH", "")]))
    script = write(tmp_path, "program.py", "import sys, sitecustomize\nprint(sys.of_the_user == sitecustomize.__file__)\n")
    done = in_environment(script)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.long
def test_another_mx_rec_of_the_program_is_an_error(tmp_path):
    write(tmp_path, "mx_rec/__init__.py", "")
    done = in_environment(write(tmp_path, "program.py", "import tensorflow\n"))
    assert done.returncode == 1 and "finds another mx_rec, in {}".format(tmp_path) in done.stderr


def test_a_failed_import_of_tensorflow_may_be_tried_again(tmp_path):
    write(tmp_path, "first/tensorflow.py", "raise ImportError('not this one')\n")
    script = write(tmp_path, "program.py", """
        import os, sys
        first = os.path.join(os.path.dirname(os.path.abspath(__file__)), "first")
        sys.path.insert(0, first)
        try:
            import tensorflow
        except ImportError as error:
            print(error)
        sys.path.remove(first)
        import tensorflow
        print("mx_rec" in sys.modules)
    """)
    done = in_environment(script)
    assert done.stdout == "not this one\nTrue\n", done.stderr


@pytest.mark.long
def test_a_copy_made_by_fork_says_nothing_at_its_end(tmp_path):
    script = write(tmp_path, "program.py", """
        import os, sys
        import tensorflow
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    """)
    assert in_environment(script).stderr.count("mx_rec: no variable") == 1


def test_options_of_a_file_and_of_the_command_line(tmp_path):
    from mx_rec.launch.options import read_arguments
    from mx_rec.stock.options import StockTables

    assert read_arguments(["a.py"]).launch[:4] == (StockTables(names=[".*"], unlimited_ids=[]), True, False, "text")
    config = write(tmp_path, "run.toml", """
        names = ["dnn/.*"]
        least_rows = 1000
        lazy_adam = true
        servers = false
        l2 = "rows of the batch"
        graph_pass = false
        access_threshold = {"dnn/a" = 3, ".*" = 2}
        evict_step_interval = 9
    """)
    found = read_arguments(["--config", config, "--least-rows", "7", "--children", "--report", "x", "-m", "p.q", "-m", "--config"])
    assert found.program == ["-m", "p.q", "-m", "--config"]
    assert found.launch[:4] == (StockTables(
        names=["dnn/.*"], least_rows=7, lazy_adam=True, servers=False, l2="rows of the batch", access_threshold={"dnn/a": 3, ".*": 2},
        evict_step_interval=9, unlimited_ids=[]), False, True, "x")
    assert type(found.launch).from_json(json.loads(found.launch.to_json())).options.access_threshold == {"dnn/a": 3, ".*": 2}
    found = read_arguments(["--names", "a", "--names", "b=c", "--access-threshold", "a=b=2", "--access-threshold", "4",
                            "--unlimited-ids", ".*", "--no-servers", "--no-graph-pass", "--quiet", "a.py"]).launch
    assert found.options == StockTables(names=["a", "b=c"], least_rows=1, access_threshold={"a=b": 2, ".*": 4},
                                        unlimited_ids=[".*"], servers=False)
    assert not found.graph_pass and found.report == ""


def test_each_setting_of_stock_tables_is_an_option():
    from mx_rec.launch.options import _SETTINGS
    from mx_rec.stock.options import StockTables

    assert {one.name for one in _SETTINGS} == set(StockTables._fields) | {"graph_pass", "children"}


def test_what_tables_held_is_known_after_their_sessions_and_the_most_of_one_name(v1):
    from mx_rec import plugin

    def trained(ids, close):
        with tf.Graph().as_default():
            w = v1.get_variable("held_by_sessions", [50, 2])
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, ids)))
            session = v1.Session()
            session.run(v1.global_variables_initializer())
            session.run(train)
            if close:
                session.close()
            return session

    def held():
        return json.loads(plugin.call("mx_rec_tables")[1].decode("utf-8"))["held_by_sessions"]

    trained([1, 2, 3], close=True)
    assert held()["rows"] == 3
    second = trained([4], close=False)
    assert held()["rows"] == 3
    third = trained(list(range(20)), close=False)
    assert held()["rows"] == 20 and held()["bytes"] > 20 * 4 * 4
    third.close()
    second.close()
    assert held()["rows"] == 20


@pytest.mark.parametrize("arguments, said", [
    (["--least-rows", "0", "a.py"], "'least_rows'"),
    (["--least-rows", "many", "a.py"], "--least-rows: invalid int value: 'many'"),
    (["--names", "(", "a.py"], "'(', which is no regular expression"),
    (["--access-threshold", "a=b", "a.py"], "--access-threshold should be N or REGEX=N with a whole number N, but is a=b"),
    (["--access-threshold", "1", "--access-threshold", "2", "a.py"], "--access-threshold without a name is given 2 times"),
    (["--memory-rows", "5", "a.py"], "'memory_rows' and 'ssd_data_path' of stock_tables go together"),
    (["--l2", "some", "a.py"], "'l2' of stock_tables should be 'all rows' or 'rows of the batch', but is 'some'"),
    (["--eviction-unit", "days", "a.py"], "'eviction_unit' of stock_tables should be 'seconds' or 'steps'"),
    (["--unknown", "a.py"], "unrecognized arguments: --unknown"),
    ([], "required: SCRIPT"), (["-m"], "required: SCRIPT"),
    (["--config", "/nowhere/x.toml", "a.py"], "--config /nowhere/x.toml: No such file"),
])
def test_a_wrong_option_is_an_error_that_names_it(refused, arguments, said):
    assert said in refused(*arguments)


@pytest.mark.parametrize("text, said", [
    ("least_rows = ", "is no TOML"), ("rows = 5", "has 'rows', which is no option; options are names, least_rows"),
    ("servers = 1", "'servers'"), ("children = 'yes'", "'children' should be true or false, but is 'yes'"),
    ("least_rows = 'x'", "'least_rows'"), ("names = [1]", "should be regular expressions"), ("\xff", "is no TOML"),
])
def test_a_wrong_file_is_an_error_that_names_it(refused, tmp_path, text, said):
    config = os.path.join(str(tmp_path), "run.toml")
    support.write(config, text.encode("latin-1"))
    assert said in refused("--config", config, "a.py")


@pytest.mark.long
def test_a_python_that_reads_no_environment_is_refused():
    done = ran([sys.executable, "-E", "-c", "import sys; sys.path[:0] = {!r}\n"
                "from mx_rec.launch.start import run; sys.exit(run(['a.py']))".format(
                    [support.PACKAGES])])
    assert done.returncode == 2 and "-I, -E and -S" in done.stderr


@pytest.mark.long
def test_the_package_says_its_commands():
    assert "python -m mx_rec run [options]" in ran([sys.executable, "-m", "mx_rec", "--help"]).stdout
    assert ran([sys.executable, "-m", "mx_rec", "walk"]).returncode == 2
    assert tf is not None
