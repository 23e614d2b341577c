// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package differential holds the tests that run our plugins and the reference's
// side by side, with the same input, in one run.
//
// TestSame draws configurations of one plugin from a seed, values at and beyond
// the edges included, and lets both attach, check and detach a container, each
// in a fresh pair of namespaces. Results, links, addresses, routes, rules,
// sysctls, queueing disciplines, neighbours, bridge VLANs, host-local's files and
// the class of a refusal must be equal, or known.txt lists the difference and
// says why it is there. Firewall rules differ by design; that they do the same is shown by traffic
// (internal/kernel, e2e).
//
// TestSwap replaces one directory of plugins by another under live attachments,
// and back.
//
//	PATCHBAY_DIFF_CASES=300 go test ./differential        how many a plugin; then an entry of known.txt that no longer matches fails
//	PATCHBAY_DIFF_SEED=7 go test ./differential -run TestSame/bridge/12     replays what a failure printed
package differential
