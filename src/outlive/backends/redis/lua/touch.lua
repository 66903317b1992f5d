-- What is there, written as it is: WAIT waits for what its own connection wrote.
local raw = redis.call('HGET', M, 'row')
if raw then redis.call('HSET', M, 'row', raw) end
return { 'existing', raw }
