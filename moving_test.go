package idempotent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/internal/redistest"
	"github.com/idempotent-go/idempotent/storetest"
)

// A pair of stores keeps the contract of one.
func TestMoving_Contract(t *testing.T) {
	t.Run("memory to memory", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			old, new := tierMem(t), tierMem(t)
			open := func() idempotent.Store { return idempotent.Moving(old, new) }
			return storetest.Harness{Store: open(), Second: open, Wrap: synctest.Test}
		})
	})
	t.Run("memory to Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := redisHarness(t, addr)
			old, new := tierMem(t), h.Second
			h.Store = idempotent.Moving(old, h.Store)
			h.Second = func() idempotent.Store { return idempotent.Moving(old, new()) }
			return h
		})
	})
}

// pairStates put a key into a state of one store.
var pairStates = map[string]func(t *testing.T, s idempotent.Store, key string){
	"absent": func(*testing.T, idempotent.Store, string) {},
	"running": func(t *testing.T, s idempotent.Store, key string) {
		_, claimed, err := s.Claim(t.Context(), key, idempotent.Claim{Owner: "running", Lease: time.Hour, Keep: time.Hour})
		require.NoError(t, err)
		require.True(t, claimed)
	},
	"known": func(t *testing.T, s idempotent.Store, key string) {
		require.NoError(t, s.Complete(t.Context(), key, "known", tierOutcome))
	},
	"unknown": func(t *testing.T, s idempotent.Store, key string) {
		_, _, err := s.Claim(t.Context(), key, idempotent.Claim{Owner: "unknown", Lease: time.Millisecond, Keep: time.Hour})
		require.NoError(t, err)
		time.Sleep(time.Second)
	},
}

// The table of the documentation: what is said of a key by the two stores, by
// every method that answers, and that a refused claim leaves both as they were.
func TestMoving_Table(t *testing.T) {
	t.Parallel()
	columns := []string{"absent", "running", "known", "unknown"}
	for before, row := range map[string][]string{
		"absent":  {"absent", "running", "known", "unknown"},
		"running": {"running", "running", "known", "running"},
		"known":   {"known", "known", "known", "known"},
		"unknown": {"unknown", "running", "known", "unknown"},
	} {
		for i, after := range columns {
			want := row[i]
			t.Run(before+" and "+after, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					old, new := tierMem(t), tierMem(t)
					pairStates[before](t, old, "k")
					pairStates[after](t, new, "k")
					s := idempotent.Moving(old, new)
					look := func(s idempotent.Store) idempotent.Entry {
						e, _, err := s.Load(t.Context(), "k")
						require.NoError(t, err)
						return e
					}
					wasOld, wasNew := look(old), look(new)
					e := look(s)
					if want == "absent" {
						require.Zero(t, e)
					} else {
						require.Equal(t, want, e.Owner)
					}
					if want != "running" {
						waited, found, err := idempotent.Wait(t.Context(), s, "k")
						require.NoError(t, err)
						require.Equal(t, want != "absent", found)
						require.Equal(t, e, waited)
					}
					claim := tierClaim
					got, claimed, err := s.Claim(t.Context(), "k", claim)
					require.NoError(t, err)
					require.Equal(t, want == "absent", claimed)
					if claimed {
						require.Equal(t, "owner", look(old).Owner)
						require.Equal(t, "owner", look(new).Owner)
						return
					}
					require.Equal(t, e, got)
					require.Equal(t, wasOld, look(old))
					require.Equal(t, wasNew, look(new))
				})
			})
		}
	}
}

// Two outcomes of one key exist only where the version with new alone took it
// over: its answer stands.
func TestMoving_TwoOutcomes(t *testing.T) {
	t.Parallel()
	old, new := tierMem(t), tierMem(t)
	o := tierOutcome
	require.NoError(t, new.Complete(t.Context(), "k", "who took over", o))
	o.Result = "another"
	require.NoError(t, old.Complete(t.Context(), "k", "owner", o)) // the later one
	e, _, err := idempotent.Moving(old, new).Load(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "result", e.Result)
}

// What is told between the two steps of a completion is told after them, too.
func TestMoving_OneReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, new := tierMem(t), tierMem(t)
		s := idempotent.Moving(old, new)
		_, claimed, err := s.Claim(t.Context(), "k", tierClaim)
		require.NoError(t, err)
		require.True(t, claimed)
		require.NoError(t, old.Complete(t.Context(), "k", "owner", tierOutcome))
		between, _, err := s.Load(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, new.Complete(t.Context(), "k", "owner", tierOutcome))
		after, _, err := s.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, between, after)
	})
}

// meanwhile is a store before whose first look something else happens.
type meanwhile struct {
	idempotent.Store
	happens func()
}

func (s *meanwhile) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	if s.happens != nil {
		happens := s.happens
		s.happens = nil
		happens()
	}
	return s.Store.Load(ctx, key)
}

// A completion between the looks at the two stores is told as ever after.
func TestMoving_CompletedBetweenTheLooks(t *testing.T) {
	t.Parallel()
	another := tierClaim
	another.Owner = "another"
	for name, look := range map[string]func(context.Context, idempotent.Store) (idempotent.Entry, error){
		"Load": func(ctx context.Context, s idempotent.Store) (idempotent.Entry, error) {
			e, _, err := s.Load(ctx, "k")
			return e, err
		},
		"Claim": func(ctx context.Context, s idempotent.Store) (idempotent.Entry, error) {
			e, _, err := s.Claim(ctx, "k", another)
			return e, err
		},
		"Wait": func(ctx context.Context, s idempotent.Store) (idempotent.Entry, error) {
			e, _, err := idempotent.Wait(ctx, s, "k")
			return e, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				old, new := tierMem(t), tierMem(t)
				for _, s := range []idempotent.Store{old, new} {
					_, _, err := s.Claim(t.Context(), "k", tierClaim)
					require.NoError(t, err)
				}
				s := idempotent.Moving(old, &meanwhile{Store: new, happens: func() {
					require.NoError(t, old.Complete(t.Context(), "k", "owner", tierOutcome))
					time.Sleep(time.Second)
					require.NoError(t, new.Complete(t.Context(), "k", "owner", tierOutcome))
				}})
				then, err := look(t.Context(), s)
				require.NoError(t, err)
				after, _, err := s.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, after, then)
			})
		})
	}
}

// The fence is the larger of both, in every answer and after the end.
func TestMoving_Fence(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]int{"old": 0, "new": 1} {
		t.Run(name+" is ahead", func(t *testing.T) {
			t.Parallel()
			pair := []idempotent.Store{tierMem(t), tierMem(t)}
			pair[behind] = fencesAhead{pair[behind]}
			s := idempotent.Moving(pair[0], pair[1])
			e, claimed, err := s.Claim(t.Context(), "k", tierClaim)
			require.NoError(t, err)
			require.True(t, claimed)
			require.Greater(t, e.Fence, int64(1<<60))
			loaded, _, err := s.Load(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, e, loaded)
			require.NoError(t, s.Complete(t.Context(), "k", "owner", tierOutcome))
			for range 2 {
				loaded, _, err = s.Claim(t.Context(), "k", idempotent.Claim{Owner: "another", Lease: time.Minute, Keep: time.Hour})
				require.NoError(t, err)
				require.Equal(t, e.Fence, loaded.Fence)
			}
		})
	}
}

// fencesAhead is a store whose fences are far ahead.
type fencesAhead struct{ idempotent.Store }

func (s fencesAhead) Load(ctx context.Context, key string) (idempotent.Entry, bool, error) {
	e, found, err := s.Store.Load(ctx, key)
	if found {
		e.Fence += 1 << 60
	}
	return e, found, err
}

func (s fencesAhead) Claim(ctx context.Context, key string, c idempotent.Claim) (idempotent.Entry, bool, error) {
	e, claimed, err := s.Store.Claim(ctx, key, c)
	e.Fence += 1 << 60
	return e, claimed, err
}

// What is lost in one store is lost, and nothing of it is recorded where that
// can be known.
func TestMoving_LostInEither(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"old", "new"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				old, new := tierMem(t), tierMem(t)
				s := idempotent.Moving(old, new)
				first := tierClaim
				first.TakeOver = true
				_, claimed, err := s.Claim(t.Context(), "k", first)
				require.NoError(t, err)
				require.True(t, claimed)
				time.Sleep(time.Hour / 2)
				lost, other := old, new
				if name == "new" {
					lost, other = new, old
				}
				second := first
				second.Owner = "another version"
				_, claimed, err = lost.Claim(t.Context(), "k", second)
				require.NoError(t, err)
				require.True(t, claimed)

				require.ErrorIs(t, s.Renew(t.Context(), "k", "owner", time.Minute), idempotent.ErrLost)
				require.ErrorIs(t, s.Complete(t.Context(), "k", "owner", tierOutcome), idempotent.ErrLost)
				e, _, err := lost.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, "another version", e.Owner)
				if name == "old" {
					e, _, err = other.Load(t.Context(), "k")
					require.NoError(t, err)
					require.True(t, e.Unknown && e.Result == "", "an outcome that old does not have, or a claim that keeps others from new: %v", e)
				}
				require.ErrorIs(t, s.Release(t.Context(), "k", "owner"), idempotent.ErrLost)
			})
		})
	}
}

// A process that dies between its two steps leaves nothing that can be run
// again by anybody who looks into both stores, nor, where the operation may
// have begun, by the versions that use one of them.
func TestMoving_DeathInBetween(t *testing.T) {
	t.Parallel()
	for step, tt := range map[string]struct {
		alive    int // calls that are sent
		act      func(ctx context.Context, s idempotent.Store) error
		old, new string // what each says in the end
		pair     string
	}{
		"claim":    {1, nil, "unknown", "absent", "unknown"},
		"complete": {3, func(ctx context.Context, s idempotent.Store) error { return s.Complete(ctx, "k", "owner", tierOutcome) }, "known", "unknown", "known"},
		"release":  {3, func(ctx context.Context, s idempotent.Store) error { return s.Release(ctx, "k", "owner") }, "unknown", "absent", "unknown"},
		"run":      {2, func(ctx context.Context, s idempotent.Store) error { return s.Complete(ctx, "k", "owner", tierOutcome) }, "unknown", "unknown", "unknown"},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				oldMem, newMem := tierMem(t), tierMem(t)
				old, new := storetest.NewFaulty(oldMem), storetest.NewFaulty(newMem)
				sent := 0
				die := func(context.Context, string) error {
					if sent++; sent > tt.alive {
						return errors.New("the process is dead")
					}
					return nil
				}
				for _, f := range []*storetest.Faulty{old, new} {
					for _, op := range []storetest.Op{storetest.OpClaim, storetest.OpComplete, storetest.OpRelease} {
						f.Before(op, die)
					}
				}
				s := idempotent.Moving(old, new)
				_, claimed, err := s.Claim(t.Context(), "k", tierClaim)
				require.Equal(t, tt.act != nil, claimed)
				if tt.act != nil {
					err = tt.act(t.Context(), s)
				}
				require.Error(t, err)

				time.Sleep(2 * tierClaim.Lease)
				says := func(s idempotent.Store) string {
					e, found, err := s.Load(t.Context(), "k")
					require.NoError(t, err)
					switch {
					case !found:
						return "absent"
					case e.Unknown:
						return "unknown"
					case e.Status == idempotent.Pending:
						return "running"
					}
					return "known"
				}
				require.Equal(t, tt.old, says(oldMem))
				require.Equal(t, tt.new, says(newMem))
				next := idempotent.Moving(oldMem, newMem)
				require.Equal(t, tt.pair, says(next))
				another := tierClaim
				another.Owner = "another"
				_, claimed, err = next.Claim(t.Context(), "k", another)
				require.NoError(t, err)
				require.False(t, claimed)
			})
		})
	}
}

// A store that fails refuses, whichever it is and at whichever step, and is an
// error of which nobody may conclude that nothing was claimed, unless so.
func TestMoving_EitherFails(t *testing.T) {
	t.Parallel()
	down := errors.New("away")
	for _, which := range []int{0, 1} {
		pair := []*storetest.Faulty{storetest.NewFaulty(tierMem(t)), storetest.NewFaulty(tierMem(t))}
		s := idempotent.Moving(pair[0], pair[1])
		_, _, err := s.Claim(t.Context(), "k", tierClaim)
		require.NoError(t, err)
		pair[which].Down(down)
		ctx := t.Context()
		_, _, err = s.Load(ctx, "k")
		require.ErrorIs(t, err, down)
		_, claimed, err := s.Claim(ctx, "free", tierClaim)
		require.ErrorIs(t, err, down)
		require.False(t, claimed)
		another := tierClaim
		another.Owner = "another"
		_, _, err = s.Claim(ctx, "k", another)
		require.ErrorIs(t, err, down)
		require.ErrorIs(t, s.Renew(ctx, "k", "owner", time.Minute), down)
		require.ErrorIs(t, s.Complete(ctx, "k", "owner", tierOutcome), down)
		require.ErrorIs(t, s.Release(ctx, "l", "owner"), down)
		require.ErrorIs(t, idempotent.Delete(ctx, s, "l"), down)
		require.ErrorIs(t, idempotent.Ping(ctx, s), down)
		_, _, err = idempotent.Wait(ctx, s, "k")
		require.ErrorIs(t, err, down)
		pair[which].Up()

		// The other store has what it was sent, and a repeat brings this one there.
		require.NoError(t, s.Complete(ctx, "k", "owner", tierOutcome))
		for _, f := range pair {
			e, _, err := f.Load(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, "result", e.Result)
			_, found, err := f.Load(ctx, "free")
			require.NoError(t, err)
			require.False(t, found, "a claim that was undone")
		}
	}
	// New is full, which says that nothing was claimed: so old is free, or the
	// error says no such thing.
	for _, undone := range []bool{true, false} {
		oldMem := tierMem(t)
		old, new := storetest.NewFaulty(oldMem), storetest.NewFaulty(tierMem(t))
		new.Before(storetest.OpClaim, func(context.Context, string) error { return idempotent.ErrFull })
		if !undone {
			old.Before(storetest.OpRelease, func(context.Context, string) error { return down })
		}
		_, claimed, err := idempotent.Moving(old, new).Claim(t.Context(), "k", tierClaim)
		require.False(t, claimed)
		_, found, loadErr := oldMem.Load(t.Context(), "k")
		require.NoError(t, loadErr)
		require.Equal(t, !undone, found)
		require.Equal(t, undone, errors.Is(err, idempotent.ErrFull))
		require.Equal(t, !undone, errors.Is(err, down))
	}
}

// A release that was answered by half is sent again, although somebody else has
// the freed half by then.
func TestMoving_ReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	old, newMem := storetest.NewFaulty(tierMem(t)), tierMem(t)
	s := idempotent.Moving(old, newMem)
	_, _, err := s.Claim(t.Context(), "k", tierClaim)
	require.NoError(t, err)
	away := errors.New("away")
	old.Before(storetest.OpRelease, func(context.Context, string) error { return away })
	require.ErrorIs(t, s.Release(t.Context(), "k", "owner"), away)
	another := tierClaim
	another.Owner = "new alone"
	_, claimed, err := newMem.Claim(t.Context(), "k", another)
	require.NoError(t, err)
	require.True(t, claimed)
	err = s.Release(t.Context(), "k", "owner")
	require.ErrorIs(t, err, away)
	require.NotErrorIs(t, err, idempotent.ErrLost)
	old.Before(storetest.OpRelease, nil)
	require.ErrorIs(t, s.Release(t.Context(), "k", "owner"), idempotent.ErrLost)
	_, found, err := old.Load(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, found)
}

// A claim that is sent again after its own outcome frees nothing.
func TestMoving_LateClaim(t *testing.T) {
	t.Parallel()
	old, new := tierMem(t), tierMem(t)
	_, _, err := old.Claim(t.Context(), "k", tierClaim)
	require.NoError(t, err)
	require.NoError(t, new.Complete(t.Context(), "k", "owner", tierOutcome))
	e, claimed, err := idempotent.Moving(old, new).Claim(t.Context(), "k", tierClaim)
	require.NoError(t, err)
	require.False(t, claimed)
	require.Equal(t, "result", e.Result)
	_, found, err := old.Load(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, found)
}

// Who waits is woken by the version that uses one store alone.
func TestMoving_WaitsForEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, new := tierMem(t), tierMem(t)
		for key, alone := range map[string]idempotent.Store{"k": old, "l": new} {
			_, _, err := alone.Claim(t.Context(), key, tierClaim)
			require.NoError(t, err)
			go func() {
				time.Sleep(time.Second)
				_ = alone.Complete(t.Context(), key, "owner", tierOutcome)
			}()
			began := time.Now()
			e, found, err := idempotent.Wait(t.Context(), idempotent.Moving(old, new), key)
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, "result", e.Result)
			require.Equal(t, time.Second, time.Since(began))
		}
	})
}

func TestMoving_Misuse(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { idempotent.Moving(nil, tierMem(t)) })
	require.Panics(t, func() { idempotent.Moving(tierMem(t), nil) })
	for _, s := range []idempotent.Store{
		idempotent.Moving(undeletable{Store: tierMem(t)}, tierMem(t)), idempotent.Moving(tierMem(t), undeletable{Store: tierMem(t)}),
	} {
		require.NoError(t, s.Complete(t.Context(), "k", "owner", tierOutcome))
		require.ErrorIs(t, idempotent.Delete(t.Context(), s, "k"), errors.ErrUnsupported)
		e, _, err := s.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "result", e.Result, "half a removal is none")
		require.NotImplements(t, (*idempotent.Sweeper)(nil), s)
	}
}

func TestStores(t *testing.T) {
	t.Parallel()
	a, b, c := tierMem(t), tierMem(t), tierMem(t)
	require.Equal(t, []idempotent.Store{a}, idempotent.Stores(a))
	require.Equal(t, []idempotent.Store{a, b}, idempotent.Stores(idempotent.Moving(a, b)))
	require.Equal(t, []idempotent.Store{b}, idempotent.Stores(idempotent.Tiered(a, b)), "copies are no entries")
	require.Equal(t, []idempotent.Store{b, c}, idempotent.Stores(idempotent.Tiered(a, idempotent.Moving(b, c))))
}
