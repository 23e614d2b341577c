// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package enforce loads a program of network policies (policy.Program) into the kernel, in the
// nftables table `inet patchbay`. Without a policy for a pod of this node, the table has no rule
// for policies, and a packet pays nothing.
//
// A program comes from the agent. The ADD of a pod does not wait for the agent: it closes the pod
// (Close), and the Load of a program that has the pod opens it.
//
// The names of all objects begin with "policy_", except the map of the revision. <hash> is a hash of
// the name in the program.
//
//	set policy_pods4_<hash>, policy_pods6_<hash>    addresses of the pods that a selector matches
//	set policy_nets4_<hash>, policy_nets6_<hash>    ranges of an ipBlock, or of a selector of nodes
//	set policy_ports_<hash>                         ports of a protocol, if a rule has many ranges of them
//	map policy_egress4, …6, policy_ingress4, …6     address of a pod of this node -> its chain
//	chain policy_egress, policy_ingress             hook forward: the pod that sends, that receives
//	chain policy_input                              hook input: a pod that sends to its node
//	chain policy_out_<hash>, policy_in_<hash>       the rules of one policy in one direction
//	chain policy_podout_<hash>, policy_podin_<hash> what is enforced for one pod of this node
//	chain policy_admout_<hash>, policy_admin_<hash> the pod's tier Admin (out, in), if a rule of the tier says Pass
//	counter policy_out_<hash>, policy_in_<hash>     packets that the policy denied
//	set policy_closedin4, …6, policy_closedout4, …6 addresses that an ADD closed, with their owners
//	set policy_local4, policy_local6                addresses of pods of this node in a program
//	counter policy_closed                           packets that were denied because of an ADD
//	chain policy_drop<in|out>_<cause>               the end of each rule that drops: counts, tells, drops (Cause)
//	chain policy_tell<in|out>_<cause>               tells to NFLOG, if the agent wants it (Options.Tell); empty otherwise
//	counter policy_drop<in|out>_<cause>             packets that were dropped for a cause
//	set policy_told<in|out>4, …6                    flows that were told in the last ten seconds
//	set policy_quiet<in|out>4, …6                   pods about which something was told in the last ten seconds
//	set policy_rate<in|out>4, …6                    such pods, with their limits
//	set policy_ended4, policy_ended6                answers in flows that a policy ended, and that are not TCP
//	set policy_endednoport4, policy_endednoport6    the same, of protocols without ports
//	chain policy_endedin, policy_endedout           drop such answers to a pod, of a pod
//	set policy_ownsource                            links of pods of this node, with their owners
//	set policy_source4, policy_source6              such a link, and an address of its pod
//	set policy_sources_in4, policy_sources_in6      the same, for packets in errors of ICMP
//	set policy_sources_routers                      links of pods behind which are other networks
//	chain policy_sources, policy_sources_other      hook prerouting: a pod sends only from its own addresses
//	chain policy_sources_errors                     a pod sends errors only about packets to it
//	counter policy_forged                           packets of such a link from an address that is not the pod's
//	map policies                                    0 -> revision: each transaction of a program changes it
//	                                                1 -> version of the base chains, once they are complete
//
// The sets and chains for sources, and those in the table bridge patchbay for ports of bridges, are there
// from the first ADD on, with and without policies (internal/nft/sources.go). So the chains below can
// trust the source address. Some packets from or to the port of a pod that is not open cannot be judged
// by these chains: the table bridge drops them.
//
// A packet of an established connection meets one rule in each base chain, which accepts it. Then
// the chain drops what an ADD closed. The
// first packet of a connection meets the chain of the pod that sends, in the first base chain, and of
// the pod that receives, in the second. There are two base chains because accept ends a base chain:
// so a policy's rule can say accept, whatever the other direction says.
//
// A packet of the node itself enters pods by the hook output, which has no chain: its node may
// always reach a pod. No rule recognises the node by its address.
//
// Every rule that drops ends with a goto to one of the tails (internal/nft/tell.go), so what is told costs nothing for a
// packet that passes. The counters of the tails are exact: what was dropped is what was told, what NFLOG lost, and what
// the limits kept back.
//
// With Options.Log, a rule that sends packets to NFLOG comes before each rule of a policy or a pod that
// drops.
//
// When a program changes, Load ends the connections that the new one denies (Options): it deletes
// their entries of connection tracking. Such a connection must not begin anew with a packet of the other
// end. So a pod with a policy in one direction drops, in the other direction, TCP packets within
// connections that the kernel does not know. A packet of another protocol does not say whether it begins a flow. So before
// an entry is deleted, the answers in its flow are noted in the sets policy_ended, and such a pod drops them
// (internal/nft/ended.go, ADR 98).
//
// Requires Linux 5.10. nft 1.0.6 prints all objects and loads them again.
package enforce
