// Package history checks stores, and the state table itself, against what the
// contract says. It is test code, and tests alone import it: those of backends in
// modules of their own, for [Check]. The model is the one of storetest,
// [github.com/idempotent-go/idempotent/internal/model].
//
// # Histories
//
// Concurrent clients call a store, and each call is recorded: what was sent,
// what was answered, and between which two moments. Porcupine then looks for an
// order of the calls of a key, in keeping with which was over before which
// began, in which the model gives all the answers. There is none where a store
// is wrong.
//
// The model decides at a moment, by the store's clock, and all that is known of
// a decision is that it was made between call and answer. So what the checker
// carries from call to call is not a state but a belief: two states of the
// model, equal but for their times and fences, and every state whose times lie
// in between is possible. A call splits a belief by what the entry may have
// been when it was decided: before its end, lapsed, or gone. For each of these
// that the times allow, the earliest decision is taken on the earliest state
// and the latest one on the latest state, by the same function; since every
// time in the model grows with the clock and with the times before, whatever
// really happened lies between the two. An answer must do so too, and what it
// shows of times and fences is believed from then on. The belief is therefore
// never narrower than the truth, so that a right store is never accused; it is
// wide only where nobody has looked since, and for the width of one call.
//
// Two clocks meet: that of the store and that of the recorder. Both are of the
// same machine; the moments of a call are widened by a tolerance, a few
// milliseconds on a server, and in a bubble of synctest nothing: there a call
// takes no time, and the check is exact. What was over before what is told by a
// counter and not by the clock, so that calls of one moment are in order too.
//
// A call that failed may have been carried out, or not, at any time after it
// was sent: it has no end, and any answer will do. That covers "never" as well,
// as after all others. Two kinds of failure are certain: a call whose context
// had ended before it, and one that found nobody to connect to, change nothing;
// they are not part of the history, so that a change they make is noticed.
//
// Clients of the Redis driver that resend by themselves hide how often a call
// was carried out. Where the driver may have resent, the history holds the call
// once more, without an end.
//
// # Sequences
//
// The same beliefs follow random sequences of one caller, drawn and shrunk by
// rapid. Each call is followed by a look, so that a fault shows at once.
//
// # Broken rules
//
// A wrapper breaks one rule of a store beneath it at a time, and each must be
// reported. A server that forgets what it answered must be, too. The checker
// itself is held against a store that decides at a moment that it is not told:
// it must believe that one.
//
// # The table
//
// The table is explored without any store: all that may happen to one key and
// two or three executions, message by message, with the rules checked in every
// state. docs/model.md shows what was explored, and the shortest way to each
// limit that the manual states.
//
// IDEMPOTENT_LONG=1 makes all of this longer, and IDEMPOTENT_UPDATE=1 writes
// docs/model.md.
package history
