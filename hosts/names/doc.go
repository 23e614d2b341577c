// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package names resolves the names of containers on other hosts. Its server listens on the
// gateway addresses of the networks that opted in. It writes no file: a container finds it
// through the DNS servers of its CNI result, or through docker run --dns, and the rest of
// the container's resolv.conf belongs to other programs (the lesson of moby#17190).
//
// # What is answered
//
// The address that a query arrives at determines its network. The server looks up NAME,
// NAME.NETWORK and, where a domain is set, NAME.NETWORK.DOMAIN in the View: A, AAAA and the
// PTR of their addresses, without regard to case. If a name has several addresses they come
// in random order. A name without an address of the wanted family, or a query for another
// type, gets no records (NODATA). The server denies a name (NXDOMAIN) only if it is bare,
// is an address of the network's own ranges, or is below NETWORK.DOMAIN. Below NETWORK
// alone other servers may have names: a network may well be called "dev". No answer carries
// an SOA, so that no client caches a negative one; positive answers are valid for 5
// seconds. The server refuses clients without an address of the network, or a gateway would
// be an open resolver for everything that can reach the host.
//
// # What is forwarded
//
// All other queries go to the servers of the host's resolv.conf, in their order. A server
// that does not answer comes last, and is tried beside the others twice a minute. Unknown
// bare names are not forwarded: they belong to containers that are gone, or are mistyped.
// The servers outside need not learn the containers' names, and an answer from outside for
// a name without a dot must not take a container's place. Queries that a resolver sends
// about a top-level domain itself (NS, SOA, DS, DNSKEY) are forwarded.
//
// # Limits for one client
//
// The server counts the queries under way by the bridge port that Ports returns, because a
// container may have many addresses. A container can also forge addresses, and a datagram
// does not show its port. A forged datagram counts for the container whose address it has,
// and those with addresses of no container count together. Therefore datagrams cannot take
// all places. A client that has no place left gets an empty answer with the TC bit and
// repeats the query by TCP, where it cannot forge an address.
package names
