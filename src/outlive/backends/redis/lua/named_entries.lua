-- Entries that an index names, with the id of their thread. Lines of what a TTL has taken are cleared. An entry that changed since
-- its line was read must still be what was asked for.
local tenant, fields, met, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local raw, row, wrong, place = look()
if not row then
  if place then
    clear_lines()
    clear_over(place, 'e')
    return { false }
  end
  return { '!' .. (wrong or TORN) } -- a line that nothing else knows of
end
local values, at = hmget(E, fields), hex(now())
for i = 1, #fields do
  local value = values[i]
  local is_whole, one, two = pcall(lines, tenant, fields[i], value)
  local is_shown = value and is_whole and (met[i] == one or met[i] == two)
  local start = 'e' .. fields[i]
  local is_damaged = value and not redis.call('ZSCORE', O, member('e', fields[i], value))
    or not value and redis.call('ZRANGEBYLEX', O, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)[1]
  if is_damaged then
    values[i] = '' -- for the client to find
  elseif not is_shown and redis.call('ZSCORE', ENTRIES, met[i]) then
    return { '!' .. TORN } -- not changed meanwhile: the line is wrong
  elseif not is_shown and value and not is_asked(value, statuses, lapsed, at) then
    values[i] = false
  end
end
return { raw, redis.call('HGET', M, 'id'), values }
