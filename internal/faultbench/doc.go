// Package faultbench builds what faults happen to, of real parts: redis-server
// processes on free loopback ports as one primary with a replica and three
// Sentinels ([StartGroup]) or as a Cluster of three primaries with a replica
// each ([StartCluster]). A single server and the relay that spoils connections
// are those of package redistest, whose [redistest.Server] also has the faults
// of one server: Kill and Revive, Pause and Resume, Fill, FlushScripts, Revoke.
//
// Everything ends with the test that started it, also when it fails; on Linux
// also when the test binary is killed. Only tests import this package. Its own
// tests are the crash tests: what becomes of keyed operations when processes,
// servers and primaries die; and the outage matrix: what each fault of a server
// does to each step of a request.
package faultbench
