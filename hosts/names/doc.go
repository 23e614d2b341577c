// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package names resolves the names of containers on other hosts. Its server listens on the
// gateway addresses of those networks for which the operator has enabled it. It writes no file.
// A container finds the server through the DNS servers in its CNI result, or through docker run
// --dns. The rest of the container's resolv.conf belongs to other programs (the lesson of
// moby#17190).
//
// # What is answered
//
// A query belongs to the network at whose address it arrives. The server looks up NAME,
// NAME.NETWORK and, if a domain is set, NAME.NETWORK.DOMAIN in the View. It answers A and AAAA,
// and PTR for their addresses, without regard to case. If a name has several addresses, they
// come in random order. A query for another type, or for a name without an address of the
// wanted family, gets no records (NODATA).
//
// The server denies a name (NXDOMAIN) only in three cases: the name has no dot, it is below
// NETWORK.DOMAIN, or it is the reverse name of an address in the network's own ranges. Below
// NETWORK alone other servers may have names, because a network may well be called "dev". No
// answer has an SOA record, so that no client caches a negative answer. Positive answers are
// valid for 5 seconds. The server refuses clients without an address of the network: otherwise
// it would be an open resolver for everything that can reach the host.
//
// # What is forwarded
//
// All other queries go to the servers of the host's resolv.conf, in their order. A server that
// does not answer is asked last. Twice a minute a query also goes to that server, while the
// client gets its answer from another one.
//
// An unknown name without a dot is not forwarded, because it is mistyped or belonged to a
// container that is gone. The servers outside need not learn the names of containers, and their
// answer must not take the place of a container. Queries about a top-level domain itself (NS,
// SOA, DS, DNSKEY) are forwarded.
//
// # Limits for one client
//
// A container may have many addresses, so the server counts the queries in progress per bridge
// port, which Ports returns. A container can also forge the source address of a datagram, and a
// datagram does not show its port. A forged datagram counts for the container whose address it
// has. All datagrams with addresses of no container count together. So that datagrams cannot
// take all places, the server reserves some for TCP. A client that gets no place receives an
// empty answer with the TC bit. It then repeats the query by TCP, where it cannot forge an
// address.
package names
