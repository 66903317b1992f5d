"""Tests of outlive.adapters.langgraph. (A folder called `langgraph` would stand in front of LangGraph itself.)"""
