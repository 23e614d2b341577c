// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package mesh carries packets between the containers of several hosts: routes
// to the hosts on the same link, one VXLAN device for the others, and what the
// firewall must know of the whole network. It knows neither what the hosts are
// for nor who keeps the list of them.
//
// Compile is pure: it makes a State of the host itself, its peers and what the
// kernel says of the way to them (Look). Sync compares the State with the kernel
// and changes what differs, nothing else: a second Sync writes nothing, and
// connections outlive every Sync, a restart of the agent and an upgrade. What is
// ours and no longer wanted goes.
//
// # What is ours
//
// Routes carry a protocol number of our own, the device an ifalias, facts of the
// firewall a holder called after the mesh, and a record below /run/patchbay says
// that the mesh is wanted (docs/ownership.md). What others made is never touched:
// a route of somebody else's for a peer's block is an error that names it.
//
// # The tunnel
//
// The device learns nothing: each peer is one entry of the forwarding database,
// from its Ethernet address to its underlay address, and one permanent neighbour,
// the link-local IPv6 address made of the Ethernet address. It is the next hop
// for blocks of both families (IPv4 over an IPv6 next hop: Linux 5.2), so the
// device needs no address and nobody asks who has one. On a kernel that was
// booted without IPv6 the next hop of a block is its own network address.
//
// One device serves one family of underlay addresses, since the kernel opens one
// socket for it: two peers use IPv4 if both have it, else IPv6. Where some peers
// need the one and some the other there is a second device, with a 6 behind its
// name.
//
// # Offloads
//
// The outer UDP checksum is on, for IPv4 too: it costs next to nothing (the inner
// one is known), and a receiving card that knows no VXLAN can still check it. Two
// known troubles are avoided by what is not done: nothing of ours marks or
// translates the outer packets (kernels before 5.7 then sent wrong checksums), and
// the underlay must lie outside the networks so that masquerading cannot. Cards
// that mistake other tunnels for theirs by the port (vmxnet3 and 8472, or 4789
// beside NSX) are answered by another Self.Port.
package mesh
