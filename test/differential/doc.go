// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package differential compares our plugins with the reference's, with the same input, in one run.
//
// TestSame draws configurations of one plugin from a seed, including values at and beyond the
// limits. Both plugins attach, check and detach a container, each in a new pair of namespaces. It
// compares results, links, addresses, routes, rules, sysctls, queueing disciplines, neighbours,
// bridge VLANs, host-local's files and the class of an error. If something differs, known.txt
// must list the difference with its reason. Firewall rules differ by design; tests with traffic
// show that they do the same (internal/kernel, e2e).
//
// TestSwap replaces one directory of plugins by another while containers are attached, and then
// swaps them back.
//
//	PATCHBAY_DIFF_CASES=300 go test ./test/differential        how many a plugin; then an entry of known.txt that no longer matches fails
//	PATCHBAY_SEED=7 go test ./test/differential -run TestSame/bridge/12     replays what a failure printed
package differential
