// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mesh carries packets between the containers of several hosts: with routes to the
// hosts on the same link, one VXLAN device for the others, and the firewall's rules for the
// whole network. It knows neither the purpose of the hosts nor the source of their list.
//
// Compile is pure: it computes a State from the host itself, its peers and the kernel's
// routes to them (Look). Sync compares the State with the kernel and changes only what
// differs: a second Sync writes nothing, and connections outlive every Sync, a restart of
// the agent and an upgrade. Sync removes objects that are ours and no longer wanted.
//
// # What is ours
//
// Routes carry a protocol number of our own, the device an ifalias, facts of the firewall a
// holder named after the mesh, and a record below /run/patchbay shows that the mesh is
// wanted (docs/ownership.md). The mesh never changes objects of other programs: a foreign
// route for a peer's block is an error that names it.
//
// # The tunnel
//
// The device learns nothing: each peer is one entry of the forwarding database, from its
// Ethernet address to its underlay address, and one permanent neighbour, the link-local
// IPv6 address derived from the Ethernet address. It is the next hop for blocks of both
// families (IPv4 over an IPv6 next hop: Linux 5.2), so the device needs no address and
// sends no neighbour solicitations. On a kernel that was booted without IPv6 the next hop
// of a block is its own network address.
//
// One device serves one family of underlay addresses, since the kernel opens one socket for
// it: two peers use IPv4 if both have it, else IPv6. If some peers need the one family and
// some the other, there is a second device, with a 6 after its name.
//
// # Offloads
//
// The outer UDP checksum is on, for IPv4 too: it costs next to nothing (the inner one is
// known), and a receiving card without VXLAN support can still check it. The mesh avoids
// two known problems: it neither marks nor translates the outer packets (kernels before 5.7
// then sent wrong checksums), and the underlay must lie outside the networks, so that
// masquerading cannot translate them either. For cards that mistake other tunnels for
// theirs by the port (vmxnet3 and 8472, or 4789 beside NSX), set another Self.Port.
package mesh
