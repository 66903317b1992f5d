-- Count the lines of the index by time of a single server, if there is a store. Keys: the index, the
-- identity.
return redis.call('HEXISTS', KEYS[2], 'key') == 1 and redis.call('HSET', KEYS[2], 'listed', redis.call('ZCARD', KEYS[1]))
