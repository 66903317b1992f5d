-- Everything of a thread but the bytes of its chunks, and whether the indexes and the roster of its
-- bucket show it as it is.
local raw, row, damage = look()
if not row then return { damage and '!' .. damage or false } end
local entries = redis.call('HGETALL', E)
local tenant, id = unpack(redis.call('HMGET', M, 'tenant', 'id'), 1, 2)
local unlisted = {}
for i = 1, #entries, 2 do
  local is_whole, by_key, by_status = pcall(lines, tenant, entries[i], entries[i + 1])
  if tenant and is_whole then
    if not redis.call('ZSCORE', ENTRIES, by_key) or not redis.call('ZSCORE', ENTRIES, by_status) then unlisted[#unlisted + 1] = entries[i] end
  end
end
local line = tenant and id and redis.call('ZSCORE', THREADS, tenant .. '\0' .. id)
local recent = tenant and id and redis.call('ZSCORE', RECENT, time_line(tenant, id, row.updated))
local roster_state = redis.call('HGET', ROSTER, DIGEST) or ''
local state = state_of(row)
local is_listed = sub(state, 1, 1) == 'l'
return {
  raw, redis.call('HGETALL', R), redis.call('ZRANGE', O, 0, -1), redis.call('HGETALL', W), entries, redis.call('HKEYS', C),
  redis.call('HMGET', M, 'tenant', 'id', 'metadata', 'projection'), #unlisted,
  (tenant and id and ((line and true or false) ~= is_listed or (recent and true or false) ~= is_listed)) and 1 or 0,
  (string.match(roster_state, '^%d*(%a*)') ~= state or (roster_state == '') ~= (state == '' and row.ends == 1)) and 1 or 0,
}
