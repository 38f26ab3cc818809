package redisstore

import "github.com/redis/go-redis/v9"

// The scripts. Each reads and writes the one key in KEYS and returns one text
// that begins with an answer byte (record.go), never a boolean or a number:
// those change their type on the way out of Lua. Instants and durations are
// microseconds, and numbers are written with %.0f, because tostring rounds at
// 14 digits.
//
// The order of writes matters. Redis refuses a write that needs memory on a
// full server only while the script has written nothing. A claim therefore
// begins with HSET, so that it is refused as a whole; every other step begins
// with PEXPIREAT, which needs no memory, also where the key is absent.

// luaRead reads the entry, refuses another format before anything else is
// understood, and something that is no record of ours.
const luaRead = `
local name = KEYS[1]
local f = redis.call('HMGET', name, 'status', 'time', 'claim', 'result', 'wait')
local status, time, claim, result, waits = f[1], f[2], f[3], f[4], f[5]
if claim and string.sub(claim, 1, 2) ~= '1 ' then return 'f' .. string.sub(claim, 1, 17) end
if not status and redis.call('EXISTS', name) == 1 then return 'x' end
if status and not (time and claim) then return 'x' end
`

// luaFinished answers with a finished entry: the way of a replay, which needs
// neither the clock nor a look inside.
const luaFinished = `
if status and status ~= 'pending' then
  if not result then return 'x' end
  return 'e' .. status .. ' ' .. time .. ' 0 ' .. #claim .. '\n' .. claim .. result
end
`

// luaParse takes the record apart. held and until stay nil where the key is
// absent.
const luaParse = `
local function number(n) return string.format('%.0f', n) end
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
local function expire(at) return redis.pcall('PEXPIREAT', name, number(math.ceil(at / 1000))) end
local function parse(text)
  local k, o, f, t, keep, takeover, claimed, fence, gained, p = string.match(text,
    '^1 (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%d+) (%d+) ([01])\n()')
  if not p or p - 1 + k + o + f + t ~= #text then return nil end
  local own, fp = p + k, p + k + o
  return {
    key = string.sub(text, p, own - 1), owner = string.sub(text, own, fp - 1),
    fingerprint = string.sub(text, fp, fp + f - 1), keep = keep * 1000,
    takeover = takeover == '1', claimed = tonumber(claimed), fence = tonumber(fence), gained = gained == '1',
  }
end
local held, set, until_
if status then
  held = parse(claim)
  set, until_ = string.match(time, '^(%d+) (%d+)$')
  if not held or not until_ then return 'x' end
  until_ = tonumber(until_)
  if status ~= 'pending' and (not result or (status ~= 'success' and status ~= 'failed' and status ~= 'unknown')) then
    return 'x'
  end
end
`

// luaWake tells the waiters of all processes that a claim has ended. A user
// who may not publish makes them poll; the step stands either way. Redis hands
// a message to every node of a Cluster, so no slot is involved.
const luaWake = `
local function wake(channel)
  if waits then
    redis.call('HDEL', name, 'wait')
    redis.pcall('PUBLISH', channel, name)
  end
end
`

// loadScript reads an entry.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  key
//	ARGV[2]  1: mark a running claim, so that its end is published
//
// Returns '-' (absent), 'e' with the entry, 'm' with a running claim that is
// marked, 'l' with a lapsed claim, 'f', 'x'.
var loadScript = redis.NewScript(luaRead + luaFinished + `
if not status then return '-' end
` + luaParse + `
if held.key ~= ARGV[1] then return 'x' end
local now = clock()
if now >= until_ + held.keep then return '-' end
local answer = 'l'
if now < until_ then
  answer = 'e'
  -- A full server refuses the mark, and then the waiter polls.
  if ARGV[2] == '1' and (waits or type(redis.pcall('HSET', name, 'wait', '1')) == 'number') then answer = 'm' end
end
return answer .. 'pending ' .. time .. ' ' .. number(now) .. ' ' .. #claim .. '\n' .. claim
`)

// claimScript claims a key, or answers with what stands in the way.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  claim field up to and including takeover
//	ARGV[2]  claim field from the key on
//	ARGV[3]  lease
//	ARGV[4]  keep
//
// Returns 'c' with the new or renewed claim, 'e' with the entry, 'l' with a
// lapsed claim, 'f', 'x'; an OOM error where the server is full.
var claimScript = redis.NewScript(luaRead + luaFinished + luaParse + `
local now = clock()
local first, fence, gained = now, now, '0'
local function answer(kind) return kind .. 'pending ' .. time .. ' ' .. number(now) .. ' ' .. #claim .. '\n' .. claim end
if held then
  local new = parse(ARGV[1] .. '0 0 0\n' .. ARGV[2])
  if held.key ~= new.key then return 'x' end
  if now < until_ + held.keep then
    if held.owner == new.owner then
      -- Sent again. It writes, or WAIT would have nothing to wait for.
      time = set .. ' ' .. number(now + ARGV[3])
      local ok = expire(now + ARGV[3] + held.keep)
      if type(ok) == 'table' and ok.err then return ok end
      redis.call('HSET', name, 'time', time)
      return answer('c')
    end
    if now < until_ then return answer('e') end
    if not (held.takeover and new.takeover and held.fingerprint == new.fingerprint) then return answer('l') end
    first, gained = held.claimed, '1'
  end
  fence = math.max(held.fence + 1, now)
end
claim = ARGV[1] .. number(first) .. ' ' .. number(fence) .. ' ' .. gained .. '\n' .. ARGV[2]
time = number(now) .. ' ' .. number(now + ARGV[3])
redis.call('HSET', name, 'status', 'pending', 'time', time, 'claim', claim)
local ok = expire(now + ARGV[3] + ARGV[4])
if type(ok) == 'table' and ok.err then
  -- Not permitted: nothing may stay without an expiry. What was there before has one.
  if not held then redis.pcall('DEL', name) end
  return ok
end
return answer('c')
`)

// renewScript starts a lease anew.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  key
//	ARGV[2]  owner
//	ARGV[3]  lease
//
// Returns '+' (renewed, or finished by this owner), '!' (lost), 'f', 'x'.
var renewScript = redis.NewScript(luaRead + luaParse + `
if not held then return '!' end
if held.key ~= ARGV[1] then return 'x' end
if held.owner ~= ARGV[2] then return '!' end
if status ~= 'pending' then return '+' end
local now = clock()
if now >= until_ + held.keep then return '!' end
local ok = expire(now + ARGV[3] + held.keep)
if type(ok) == 'table' and ok.err then return ok end
redis.call('HSET', name, 'time', set .. ' ' .. number(now + ARGV[3]))
return '+'
`)

// completeScript records an outcome.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  claim field up to and including takeover, for an absent entry
//	ARGV[2]  claim field from the key on, likewise
//	ARGV[3]  status
//	ARGV[4]  result
//	ARGV[5]  retention
//	ARGV[6]  channel of the waiters
//	ARGV[7]  key
//	ARGV[8]  owner
//
// Returns '+' (recorded, now or before), '!' (lost), 'f', 'x'.
var completeScript = redis.NewScript(luaRead + luaParse + luaWake + `
local now
if held then
  if held.key ~= ARGV[7] then return 'x' end
  if status == 'pending' then now = clock() end
  if now and now >= until_ + held.keep then
    status = nil
  elseif held.owner ~= ARGV[8] then
    return '!'
  elseif status ~= 'pending' then
    if ARGV[3] == 'unknown' then return '+' end
    if status ~= 'unknown' then
      if status == ARGV[3] and result == ARGV[4] then return '+' end
      return '!'
    end
  end
end
now = now or clock()
time = number(now) .. ' ' .. number(now + ARGV[5])
local ok = expire(now + ARGV[5])
if type(ok) == 'table' and ok.err then return ok end
if status then
  redis.call('HSET', name, 'status', ARGV[3], 'time', time, 'result', ARGV[4])
else
  local fence = now
  if held then fence = math.max(held.fence + 1, now) end
  claim = ARGV[1] .. number(now) .. ' ' .. number(fence) .. ' 0\n' .. ARGV[2]
  redis.call('HSET', name, 'status', ARGV[3], 'time', time, 'claim', claim, 'result', ARGV[4])
  expire(now + ARGV[5])
end
wake(ARGV[6])
return '+'
`)

// releaseScript frees a key.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  key
//	ARGV[2]  owner
//	ARGV[3]  channel of the waiters
//
// Returns '+' (free, or finished by this owner), '!' (lost), 'f', 'x'.
var releaseScript = redis.NewScript(luaRead + luaParse + luaWake + `
if not held then return '+' end
if held.key ~= ARGV[1] then return 'x' end
local now
if status == 'pending' then
  now = clock()
  if now >= until_ + held.keep then return '+' end
end
if held.owner ~= ARGV[2] then return '!' end
if status == 'success' or status == 'failed' then return '+' end
if now and held.gained then
  -- The first owner's work may have happened.
  if now < until_ then
    local ok = expire(now + held.keep)
    if type(ok) == 'table' and ok.err then return ok end
    redis.call('HSET', name, 'time', set .. ' ' .. number(now))
    wake(ARGV[3])
  end
  return '+'
end
redis.call('DEL', name)
if waits then redis.pcall('PUBLISH', ARGV[3], name) end
return '+'
`)

// deleteScript removes a key whatever it holds.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  channel of the waiters
//
// Returns '+'.
var deleteScript = redis.NewScript(`
local waits = redis.pcall('HGET', KEYS[1], 'wait')
redis.call('DEL', KEYS[1])
if type(waits) == 'string' then redis.pcall('PUBLISH', ARGV[1], KEYS[1]) end
return '+'
`)
