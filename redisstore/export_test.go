package redisstore

import "time"

// Waiting returns the number of waiters.
func (s *Store) Waiting() int {
	n, _ := s.waiters.Waiters()
	return n
}

// Targets returns the number of keys that somebody waits for.
func (s *Store) Targets() int {
	_, keys := s.waiters.Waiters()
	return keys
}

// Subscribed reports whether the server has confirmed the subscription.
func (s *Store) Subscribed() bool { return s.waiters.Told() }

// RestAfter ends the subscription when nobody has waited for d. It is called
// before the first Wait, as NeverPoll is.
func (s *Store) RestAfter(d time.Duration) { s.waiters.Idle = d }

// NeverPoll leaves waiters to the subscription and the end of the lease.
func (s *Store) NeverPoll() { s.waiters.Slow = time.Hour }
