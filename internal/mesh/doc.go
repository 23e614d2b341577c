// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mesh connects the containers of several hosts. Package mesh makes routes to hosts on
// the same link, a VXLAN device for the other hosts or a WireGuard device for all, and firewall
// rules for the whole network. Its caller provides the list of hosts.
//
// Look reads the kernel's routes to the peers. Compile computes a State from the host, its
// peers and these routes; it changes nothing. Sync compares the State with the kernel and
// changes only what differs. So a second Sync writes nothing. Connections survive every Sync, a
// restart of the agent and an upgrade. Sync also removes our objects that the State no longer
// contains.
//
// # What is ours
//
// Our routes have our own protocol number, and our devices have an ifalias. Facts of the
// firewall have a holder named after the mesh. A record in /run/patchbay shows that the mesh is
// wanted (docs/ownership.md). The mesh never changes objects of other programs. If another
// program has a route for a peer's block, the error names that route.
//
// # The tunnel
//
// The device does not learn addresses. For each peer, its forwarding database has one entry
// from the peer's Ethernet address to the peer's underlay address. The device also has one
// permanent neighbour for each peer: a link-local IPv6 address derived from the Ethernet
// address. This address is the next hop for IPv4 and IPv6 blocks (an IPv6 next hop for IPv4
// needs Linux 5.2). So the device sends no neighbour solicitations. It has the
// address that is derived from its own Ethernet address, and answers the tests of other hosts
// there (docs/adr/0049). If the kernel was booted without IPv6, the next hop of a block is the
// block's network address.
//
// One device serves one family of underlay addresses, because the kernel opens one socket for
// it. Two peers use IPv4 if both have it, and IPv6 otherwise. If some peers need IPv4 and
// others IPv6, there is a second device whose name ends in 6.
//
// # WireGuard
//
// One WireGuard device encrypts the packets to all peers with this transport, over IPv4 and
// IPv6. If a peer has no key, the mesh makes no route to it. The mesh also makes an unreachable
// route for the whole network of encrypted peers. Without this route, packets would take the
// default route when a peer has no key or the device is missing. The device has the first
// address of each block of this host, which no container gets. Programs on the host and
// masquerading use this address as source. The mesh does not drop unencrypted packets that
// arrive from outside.
//
// # Path MTU
//
// Probe finds how many bytes the path to each peer carries, and Sync gives the routes to that
// peer an MTU if it is less than the link's (docs/adr/0045).
//
// # Offloads
//
// The outer UDP checksum is on, for IPv4 too. The checksum costs almost nothing, because the
// inner checksum is known. A receiving network card without VXLAN support can still check it.
// Kernels before 5.7 sent wrong checksums if outer packets were marked or translated. The mesh
// does neither, and the underlay must lie outside the networks, so that masquerading does not
// translate outer packets either. Some cards mistake a tunnel for another kind of tunnel
// because of its port (vmxnet3 with 8472, or with 4789 if NSX is used). For such cards set
// another Self.Port.
package mesh
