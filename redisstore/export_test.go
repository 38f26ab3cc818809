package redisstore

import "time"

// Waiting returns the number of waiters.
func (s *Store) Waiting() int {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	n := 0
	for _, t := range s.waits.targets {
		n += len(t.waiters)
	}
	return n
}

// Targets returns the number of keys that somebody waits for.
func (s *Store) Targets() int {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	return len(s.waits.targets)
}

// Subscribed reports whether the server has confirmed the subscription.
func (s *Store) Subscribed() bool {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	return s.waits.subscribed
}

// Rest ends the subscription as its idle timer does.
func (s *Store) Rest() { s.waits.rest() }

// NeverPoll leaves waiters to the subscription and the end of the lease. It is
// called before the first Wait.
func (s *Store) NeverPoll() { s.waits.slow = time.Hour }
