// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package names answers for the names of containers on other hosts: a resolver
// that listens on the gateway addresses of networks that opted in. It never
// writes a file: a container comes to it by the DNS servers of its CNI result, or
// by docker run --dns, and whatever else is in its resolv.conf stays somebody
// else's (the lesson of moby#17190).
//
// # What is answered
//
// The address that a query arrived at says which network it belongs to. NAME,
// NAME.NETWORK and, where a domain is set, NAME.NETWORK.DOMAIN are looked up in
// the View: A, AAAA and the PTR of their addresses, without regard to case. A
// name may have several addresses, which come shuffled; a name that exists
// without an address of the wanted family, or that is asked for anything else, is
// answered with no records (NODATA). There is no such name (NXDOMAIN) only for bare
// names, for addresses of the network's own ranges, and under NETWORK.DOMAIN; under
// NETWORK alone others may have names: a network may well be called "dev".
// Nothing carries an SOA, so nobody keeps a negative answer; positive ones are
// for 5 seconds. Only who has an address of the network is answered at all, or a
// gateway would be an open resolver to whoever can reach the host.
//
// # What is forwarded
//
// Everything else, to the servers of the host's resolv.conf in their order, but
// one that does not answer last: a query goes to it, too, twice a minute. Bare names that
// nobody has are not: they are names of containers that are gone, or mistyped,
// and the servers outside need not learn how the containers here are called; nor
// may whoever answers there for a dotless name take a container's place. What a
// resolver asks about a top-level domain itself (NS, SOA, DS, DNSKEY) passes.
//
// # Who asks too much
//
// Queries under way are counted by the port of the bridge that Ports tells, as a
// container may have many addresses. It can forge one, too: a datagram says nothing
// of the port that it came in by, so a forged one counts for the container that
// it names, and those of addresses that no container has count together. So datagrams
// cannot take all places, and a client that finds its places taken gets an empty answer
// with the TC bit: it comes again by TCP, where an address cannot be forged.
package names
