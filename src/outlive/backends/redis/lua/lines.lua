-- Both indexes and the roster of a bucket, and the size of the index by time, at one moment.
return { redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HGETALL', KEYS[3]), redis.call('ZCARD', KEYS[4]) }
