"""Writes of a running graph wait for the put that follows them; those of other callers do not."""

from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

from outlive.backends.sqlite.backend import SQLiteBackend


class State(TypedDict):
    items: Annotated[list, lambda old, new: [*old, *new]]


def test_only_writes_of_a_running_graph_linger(saver, monkeypatch):
    lingers = []
    commit_all = SQLiteBackend.commit_all

    def noting(self, commits):
        lingers.extend((bool(commit.writes), commit.linger_s > 0) for commit in commits)
        return commit_all(self, commits)

    monkeypatch.setattr(SQLiteBackend, "commit_all", noting)
    graph = StateGraph(State).add_node("add", lambda state: {"items": [1]})
    compiled = graph.add_edge(START, "add").add_edge("add", END).compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "t"}}
    compiled.invoke({"items": [0]}, config)
    assert set(lingers) == {(True, True), (False, False)}
    lingers.clear()
    compiled.update_state(config, {"items": [2]})
    assert set(lingers) == {(True, False), (False, False)}
    assert compiled.get_state(config).values == {"items": [0, 1, 2]}
