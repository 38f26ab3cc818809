// Package upgradetest runs an earlier release and the present code side by side
// on one Redis, under load. Only its test does anything; prog is the program of
// which both are built.
package upgradetest
