"""CSV text as utilities and ablations, and what the errors say."""

import re

import numpy as np
import pytest

from gristmill.mixing.weights.tables import ablations, utilities

WIDE = "source,science,science_se,loss:code,loss:code_se\nbooks,0.71,0.02,0.93,0.01\nweb, 0.5 ,0,1.5,0.03\n"


def test_one_line_a_source() -> None:
    table = utilities(WIDE)
    assert table.sources == ("books", "web") and table.tasks == ("science", "code")
    assert table.values_NT.tolist() == [[0.71, -0.93], [0.5, -1.5]]
    assert table.errors_NT.tolist() == [[0.02, 0.01], [0.0, 0.03]]


def test_spreadsheets_leave_marks_and_empty_lines() -> None:
    plain = utilities(WIDE)
    marked = utilities("\ufeff" + WIDE.replace("\n", "\r\n") + "\r\n,,,,\r\n")
    assert marked.sources == plain.sources and np.array_equal(marked.values_NT, plain.values_NT)


def test_one_line_for_each_source_and_task() -> None:
    table = utilities('source,task,value,error\nbooks,"a, b",1,0.1\nweb,"a, b",2,0.2\nweb,x_se,3,0\nbooks,x_se,4,0\n')
    assert table.tasks == ("a, b", "x_se") and table.values_NT.tolist() == [[1.0, 4.0], [2.0, 3.0]]
    assert table.errors_NT.tolist() == [[0.1, 0.0], [0.2, 0.0]]
    assert utilities("source,task,value\na,t,1\nb,t,2\n").errors_NT.tolist() == [[0.0], [0.0]]


def test_runs_become_ablations() -> None:
    table = ablations(
        "run,weight:web,weight:books,loss:science,score:quiz\n"
        + "".join(f"r{i},0.{i},0.{10 - i},{1 + i},0.{i}\n" for i in range(1, 6))
    )
    assert table.sources == ("books", "web") and table.tasks == ("quiz", "science")
    assert table.weights_RN.shape == (5, 2) and np.allclose(table.weights_RN.sum(axis=1), 1)
    assert np.allclose(table.weights_RN[:, 1], [0.5, 0.4, 0.3, 0.2, 0.1])
    assert np.allclose(table.losses_RT, [[0.5, 6], [0.6, 5], [0.7, 4], [0.8, 3], [0.9, 2]])


RUNS = "weight:a,weight:b,loss:t\n" + "0.5,0.5,1\n" * 4


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (utilities, "", "u.csv: a line of column names"),
        (utilities, "source,t\n", "u.csv: a line of column names"),
        (utilities, "name,t\na,1\n", "u.csv:1: no column `source`"),
        (utilities, "source\na\n", "u.csv:1: no column of a task"),
        (utilities, "source,t\na,1\nb,x\n", "u.csv:3: t: 'x'; expected a number"),
        (utilities, "source,t\na,1\nb,nan\n", "u.csv:3: t: 'nan'; expected a number"),
        (utilities, "source,t\n\na,\n", "u.csv:3: t: ''; expected a number"),
        (utilities, "source,t,t_se\na,1,-1\n", "u.csv:2: t_se: '-1'; expected a number, 0 or more"),
        (utilities, "source,t,u_se\na,1,1\n", "u.csv:1: u_se: a standard error of no column; expected a column `u`"),
        (utilities, "source,t\na,1,2\n", "u.csv:2: 3 cells; expected 2"),
        (utilities, "source,t\na,1\na,2\n", "u.csv:3: source 'a' stands at u.csv:2 already"),
        (utilities, "source,t\n,1\n", "u.csv:2: source: empty"),
        (utilities, "source,t,t\na,1,2\n", "u.csv:1: column 't' stands twice"),
        (utilities, "source,t,loss:t\na,1,2\n", "u.csv:1: task 't' has two columns"),
        (utilities, 'source,t\na,"1"2\n', "u.csv:2: no CSV"),
        (utilities, "source,task,value\na,t,1\na,t,2\n", "u.csv:3: source 'a', task 't' stands at u.csv:2 already"),
        (utilities, "source,task,value\na,t,1\nb,u,2\n", "u.csv: no line for source 'a', task 'u' and 1 more"),
        (ablations, "a,b\n1,2\n", "u.csv:1: expected columns `weight:SOURCE`"),
        (ablations, RUNS + "0.5,0.6,1\n", "u.csv:6: the weights sum to 1.1; expected 1"),
        (ablations, RUNS + "-0.5,1.5,1\n", "u.csv:6: weight:a: '-0.5'; expected a number, 0 or more"),
        (
            ablations,
            RUNS.replace("loss", "score") + "0.5,0.5,41\n",
            "u.csv:6: score:t: '41'; expected a number from 0 to 1",
        ),
        (ablations, "weight:,loss:t\n1,2\n", "u.csv:1: a column 'weight:' without a name"),
        (ablations, "weight:a,loss:t,score:t\n1,2,0.5\n", "u.csv:1: task 't' has two columns"),
        (ablations, "weight:a,weight:b,loss:t\n0.5,0.5,1\n", "1 runs"),
    ],
)
def test_errors_name_the_line(read, text: str, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(said)):
        read(text, "u.csv")
