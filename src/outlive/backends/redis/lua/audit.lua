-- Everything of a thread but the bytes of its chunks; and what of it the indexes and the roster of its bucket do not show as it is.
local raw, row, wrong = look()
if not row then return { wrong and '!' .. wrong or false } end
local entries = redis.call('HGETALL', E)
local tenant, id = unpack(redis.call('HMGET', M, 'tenant', 'id'), 1, 2)
local unseen = {}
for i = 1, #entries, 2 do
  local is_whole, one, two = pcall(lines, tenant, entries[i], entries[i + 1])
  if tenant and is_whole then
    if not redis.call('ZSCORE', ENTRIES, one) or not redis.call('ZSCORE', ENTRIES, two) then unseen[#unseen + 1] = entries[i] end
  end
end
local line = tenant and id and redis.call('ZSCORE', THREADS, tenant .. '\0' .. id)
local place = redis.call('HGET', ROSTER, WHO) or ''
local is = standing(row)
return {
  raw, redis.call('HGETALL', R), redis.call('ZRANGE', O, 0, -1), redis.call('HGETALL', W), entries, redis.call('HKEYS', C),
  redis.call('HMGET', M, 'tenant', 'id', 'info', 'projection'), #unseen,
  (tenant and id and (line and true or false) ~= (sub(is, 1, 1) == 'l')) and 1 or 0,
  (string.gsub(place, '^%d+', '') ~= is or (place == '') ~= (is == '' and row.ends == 1)) and 1 or 0,
}
