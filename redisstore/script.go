package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
)

// The scripts. Each reads and writes the one key in KEYS and returns one text
// that begins with an answer byte (record.go), never a boolean or a number:
// those change their type on the way out of Lua. Instants and durations are
// microseconds; tostring would round them at 14 digits.
//
// The order of writes matters. Redis refuses a write that needs memory on a
// full server only while the script has written nothing. A claim therefore
// begins with HSET, so that it is refused as a whole; every other step begins
// with PEXPIREAT, which needs no memory, also where the key is absent.
//
// Counted in instructions of the server, where PING is 4: an empty script is 16,
// an argument 1 to 2, a command 3 to 11, a look at four fields 9, a double
// written as text 5, an integer 2. So a fresh claim, the completion by its owner
// and a replay look at no more than they need.

// script is a script and the name by which a server that has seen it knows it.
// Both are boxed once, as arguments of a command.
type script struct{ source, hash any }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, hash: hex.EncodeToString(sum[:])}
}

// luaStart names what every script uses.
const luaStart = `
local call, sub, find, match, format, ceil = redis.call, string.sub, string.find, string.match, string.format, math.ceil
local name = KEYS[1]
-- %d is several times faster than %.0f, but a server of 32 bits cuts it: then
-- less than the 16 digits of an instant come out, or the 13 of milliseconds.
local function text(n, digits)
  local s = format('%d', n)
  if #s < digits then s = format('%.0f', n) end
  return s
end
local function expire(at) return redis.pcall('PEXPIREAT', name, text(ceil(at / 1000), 13)) end
`

// luaFormat refuses another format before anything else is understood, and
// something that is no record of ours.
const luaFormat = `
if claim and sub(claim, 1, 2) ~= '1 ' then return 'f' .. sub(claim, 1, 17) end
if not (status and time and claim) then return 'x' end
`

// luaRead reads the entry and answers with a finished one: the way of a
// replay, which needs neither the clock nor a look inside. Of an absent one it
// asks for nothing but that.
const luaRead = luaStart + `
local status, time, claim, result
if call('EXISTS', name) == 1 then
  local f = call('HMGET', name, 'status', 'time', 'claim', 'result')
  status, time, claim, result = f[1], f[2], f[3], f[4]
` + luaFormat + `
  if status ~= 'pending' then
    if not result then return 'x' end
    return 'e' .. status .. ' ' .. time .. ' 0 ' .. #claim .. '\n' .. claim .. result
  end
end
`

// luaOwn reads what the steps of an owner look at. They know the result
// themselves, and there should be a record.
const luaOwn = luaStart + `
local ident = ARGV[1]
local f = call('HMGET', name, 'status', 'time', 'claim', 'wait')
local status, time, claim, waits = f[1], f[2], f[3], f[4]
if status or claim or call('EXISTS', name) == 1 then
` + luaFormat + `
end
`

// The lines of a claim field, as patterns (record.go).
const (
	luaIdentity = `'^1 (%d+) (%d+)\n()'`
	luaRequest  = `'^\n(%d+) (%d+) (%d+) ([01])\n()'`
	luaAdded    = `'^\n(%d+) (%d+) ([01])$'`
)

// luaParse takes the record apart where there is one. ident is the identity of
// who asks: how the claim field begins when it is his, which own says. Where the
// key is absent everything stays nil. The server's line is at last.
const luaParse = `
local own, set, until_, fp, keep, takeover, texts, last
if status then
  local at, trace = #ident + 1, nil
  own = sub(claim, 1, #ident) == ident
  if not own then
    local k, o, p = match(claim, ` + luaIdentity + `)
    local mine, _, from = match(ident, ` + luaIdentity + `)
    if not p or sub(claim, p, p + k - 1) ~= sub(ident, from, from + mine - 1) then return 'x' end
    at = p + k + o
  end
  set, until_ = match(time, '^(%d+) (%d+)$')
  fp, trace, keep, takeover, texts = match(claim, ` + luaRequest + `, at)
  if not until_ or not texts then return 'x' end
  last = texts + fp + trace
  if not find(claim, ` + luaAdded + `, last) then return 'x' end
  if status ~= 'pending' and ((status ~= 'success' and status ~= 'failed' and status ~= 'unknown')
    or not call('HGET', name, 'result')) then return 'x' end
  until_, keep = tonumber(until_), keep * 1000
end
`

// luaClock reads the server's clock.
const luaClock = `
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
`

// luaWake tells the waiters of all processes that a claim has ended, on the
// channel that they have left with their mark. A user who may not publish makes
// them poll; the step stands either way. Redis hands a message to every node of
// a Cluster, so no slot is involved.
const luaWake = `
if waits then
  call('HDEL', name, 'wait')
  redis.pcall('PUBLISH', waits, name)
end
`

// loadScript reads an entry.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  identity, of nobody
//	ARGV[2]  channel on which to publish the end of a running claim, or empty
//
// Returns '-' (absent), 'e' with the entry, 'm' with a running claim that is
// marked, 'l' with a lapsed claim, 'f', 'x'.
var loadScript = newScript(luaRead + `
if not status then return '-' end
local ident = ARGV[1]
` + luaParse + luaClock + `
if now >= until_ + keep then return '-' end
local answer = 'l'
if now < until_ then
  answer = 'e'
  -- A full server refuses the mark, and then the waiter polls.
  if ARGV[2] ~= '' and (call('HGET', name, 'wait') == ARGV[2]
    or type(redis.pcall('HSET', name, 'wait', ARGV[2])) == 'number') then answer = 'm' end
end
return answer .. 'pending ' .. time .. ' ' .. text(now, 16) .. ' ' .. #claim .. '\n' .. claim
`)

// listScript reads an entry without its result.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  identity, of nobody
//
// Returns '-' (absent), 'e' with the entry, 'l' with a lapsed claim, 'f', 'x'.
var listScript = newScript(luaStart + `
local f = call('HMGET', name, 'status', 'time', 'claim')
local status, time, claim = f[1], f[2], f[3]
if not status and not claim and call('EXISTS', name) == 0 then return '-' end
` + luaFormat + `
if status ~= 'pending' then
  if call('HEXISTS', name, 'result') == 0 then return 'x' end
  return 'e' .. status .. ' ' .. time .. ' 0 ' .. #claim .. '\n' .. claim
end
local ident = ARGV[1]
` + luaParse + luaClock + `
if now >= until_ + keep then return '-' end
local answer = 'l'
if now < until_ then answer = 'e' end
return answer .. 'pending ' .. time .. ' ' .. text(now, 16) .. ' ' .. #claim .. '\n' .. claim
`)

// claimScript claims a key, or answers with what stands in the way.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  claim field without what the server adds
//	ARGV[2]  lease
//	ARGV[3]  keep
//
// Returns 'n' with the time field of a new claim, 'c' with a claim that was
// sent again or succeeds another, 'e' with the entry, 'l' with a lapsed claim,
// 'f', 'x'; an OOM error where the server is full.
var claimScript = newScript(luaRead + luaClock + `
if not status then
  local set = text(now, 16)
  time = set .. ' ' .. text(now + ARGV[2], 16)
  call('HSET', name, 'status', 'pending', 'time', time, 'claim', ARGV[1] .. '\n' .. set .. ' 0 0')
  local ok = expire(now + ARGV[2] + ARGV[3])
  if type(ok) == 'table' then
    -- Not permitted: nothing may stay without an expiry.
    redis.pcall('DEL', name)
    return ok
  end
  return 'n' .. time
end
local key, owner, start = match(ARGV[1], ` + luaIdentity + `)
local ident = sub(ARGV[1], 1, start + key + owner - 1)
` + luaParse + `
local function answer(kind) return kind .. 'pending ' .. time .. ' ' .. text(now, 16) .. ' ' .. #claim .. '\n' .. claim end
local first, later = match(claim, ` + luaAdded + `, last)
local since, taken = now, '0'
if now < until_ + keep then
  if own then
    -- Sent again. It writes, or WAIT would have nothing to wait for.
    local ok = expire(now + ARGV[2] + keep)
    if type(ok) == 'table' then return ok end
    time = set .. ' ' .. text(now + ARGV[2], 16)
    call('HSET', name, 'time', time)
    return answer('c')
  end
  if now < until_ then return answer('e') end
  local newfp, _, _, may, at = match(ARGV[1], ` + luaRequest + `, #ident + 1)
  if takeover == '0' or may == '0' or sub(claim, texts, texts + fp - 1) ~= sub(ARGV[1], at, at + newfp - 1) then
    return answer('l')
  end
  since, taken = first + 0, '1'
end
local fence = math.max(first + later + 1, now)
claim = ARGV[1] .. format('\n%.0f %.0f ', since, fence - since) .. taken
time = text(now, 16) .. ' ' .. text(now + ARGV[2], 16)
call('HSET', name, 'status', 'pending', 'time', time, 'claim', claim)
local ok = expire(now + ARGV[2] + ARGV[3])
if type(ok) == 'table' then return ok end
return answer('c')
`)

// renewScript starts a lease anew.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  identity
//	ARGV[2]  lease
//
// Returns '+' (renewed, or finished by this owner), '!' (lost), 'f', 'x'.
var renewScript = newScript(luaOwn + luaParse + `
if not own then return '!' end
if status ~= 'pending' then return '+' end
` + luaClock + `
if now >= until_ + keep then return '!' end
local ok = expire(now + ARGV[2] + keep)
if type(ok) == 'table' then return ok end
call('HSET', name, 'time', set .. ' ' .. text(now + ARGV[2], 16))
return '+'
`)

// completeScript records an outcome.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  identity
//	ARGV[2]  status
//	ARGV[3]  result
//	ARGV[4]  retention
//	ARGV[5]  fingerprint, for an absent entry
//
// Returns '+' (recorded, now or before), '!' (lost), 'f', 'x'.
var completeScript = newScript(luaOwn + luaParse + `
if status and status ~= 'pending' then
  if not own then return '!' end
  if ARGV[2] == 'unknown' then return '+' end
  if status ~= 'unknown' then
    if status == ARGV[2] and call('HGET', name, 'result') == ARGV[3] then return '+' end
    return '!'
  end
end
` + luaClock + `
if status == 'pending' then
  if now >= until_ + keep then
    status = nil
  elseif not own then
    return '!'
  end
end
time = text(now, 16) .. ' ' .. text(now + ARGV[4], 16)
local ok = expire(now + ARGV[4])
if type(ok) == 'table' then return ok end
if status then
  call('HSET', name, 'status', ARGV[2], 'time', time, 'result', ARGV[3])
else
  local fence = now
  if own ~= nil then
    local first, later = match(claim, ` + luaAdded + `, last)
    fence = math.max(first + later + 1, now)
  end
  claim = ident .. '\n' .. #ARGV[5] .. ' 0 0 0\n' .. ARGV[5] .. format('\n%.0f %.0f 0', now, fence - now)
  call('HSET', name, 'status', ARGV[2], 'time', time, 'claim', claim, 'result', ARGV[3])
  expire(now + ARGV[4])
end
` + luaWake + `
return '+'
`)

// releaseScript frees a key.
//
//	KEYS[1]  name of the hash
//	ARGV[1]  identity
//
// Returns '+' (free, or finished by this owner), '!' (lost), 'f', 'x'.
var releaseScript = newScript(luaOwn + luaParse + luaClock + `
if not status or status == 'pending' and now >= until_ + keep then return '+' end
if not own then return '!' end
if status == 'success' or status == 'failed' then return '+' end
if status == 'pending' and find(claim, '1$', last) then
  -- The first owner's work may have happened.
  if now >= until_ then return '+' end
  local ok = expire(now + keep)
  if type(ok) == 'table' then return ok end
  call('HSET', name, 'time', set .. ' ' .. text(now, 16))
` + luaWake + `
  return '+'
end
call('DEL', name)
if waits then redis.pcall('PUBLISH', waits, name) end
return '+'
`)

// deleteScript removes a key whatever it holds.
//
//	KEYS[1]  name of the hash
//
// Returns '+'.
var deleteScript = newScript(`
local waits = redis.pcall('HGET', KEYS[1], 'wait')
redis.call('DEL', KEYS[1])
if type(waits) == 'string' then redis.pcall('PUBLISH', waits, KEYS[1]) end
return '+'
`)
