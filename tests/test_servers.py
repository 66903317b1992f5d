"""The servers that tests run against start, end, crash and come back as they are told, and never outlive their owner."""

from __future__ import annotations

import psycopg
import redis


def test_a_postgres_url_leads_to_an_empty_database(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(
            "select count(*) from pg_tables where schemaname = 'public'"
        ).fetchone() == (0,)
        connection.execute("create table left_behind()")


def test_what_another_test_left_in_postgres_is_gone(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(
            "select count(*) from pg_tables where schemaname = 'public'"
        ).fetchone() == (0,)


def test_a_valkey_url_leads_to_an_empty_server(valkey_url):
    with redis.Redis.from_url(valkey_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_a_shared_server_may_be_asked_for_in_the_middle_of_a_test(request):
    server = request.getfixturevalue("valkey_server")
    server.restart()
    assert server.is_running
