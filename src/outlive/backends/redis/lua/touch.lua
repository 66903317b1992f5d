-- Write the row as it is: WAIT waits only for the writes of its own connection.
local raw = redis.call('HGET', M, 'row')
if raw then redis.call('HSET', M, 'row', raw) end
return { 'existing', raw }
