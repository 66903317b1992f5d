-- Entries of a thread that lines of an index name, with the id of the thread. Lines of an expired
-- thread are removed. An entry that changed since its line was read must still match the filter.
local tenant, fields, seen, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local raw, row, damage, expired = look()
if not row then
  if expired then
    clear_lines()
    clear_expired(expired, 'e')
    return { false }
  end
  return { '!' .. (damage or TORN) } -- a line that nothing else knows of
end
local values, at = hmget(E, fields), hex(now())
for i = 1, #fields do
  local value = values[i]
  local is_whole, by_key, by_status = pcall(lines, tenant, fields[i], value)
  local is_shown = value and is_whole and (seen[i] == by_key or seen[i] == by_status)
  local start = 'e' .. fields[i]
  local is_damaged = value and not redis.call('ZSCORE', O, member('e', fields[i], value))
    or not value and redis.call('ZRANGEBYLEX', O, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)[1]
  if is_damaged then
    values[i] = '' -- the client reports it
  elseif not is_shown and redis.call('ZSCORE', ENTRIES, seen[i]) then
    return { '!' .. TORN } -- the entry did not change: the line is wrong
  elseif not is_shown and value and not is_asked(value, statuses, lapsed, at) then
    values[i] = false
  end
end
return { raw, redis.call('HGET', M, 'id'), values }
