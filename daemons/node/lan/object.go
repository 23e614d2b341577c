// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/services"
)

// These are annotations of Services.
const (
	AnnotationAddresses = plan.AnnotationPrefix + "load-balancer-ips"  // addresses that the Service requests, separated by commas
	AnnotationPool      = plan.AnnotationPrefix + "load-balancer-pool" // the pool of which it gets its addresses
)

// LabelExcluded is the label of Nodes at which load balancers must not send packets (KEP-1143).
const LabelExcluded = "node.kubernetes.io/exclude-from-external-load-balancers"

// Class is the loadBalancerClass of the Services that get addresses whether or not those without a class do.
const Class = plan.AnnotationPrefix + "lan"

// Service is what counts of a Service here.
type Service struct {
	Name         services.Name
	UID, Version string
	Balanced     bool    // it has the type LoadBalancer
	Class        *string // nil: none
	Families     []bool  // of its cluster IPs, in their order: whether it is IPv6
	Prefers      bool    // its second family may be missing (ipFamilyPolicy PreferDualStack)
	Local        bool    // externalTrafficPolicy Local
	Requested    []netip.Addr
	Pool         string       // that it requests; "": any
	Wrong        string       // what of its requests cannot be read
	Status       []netip.Addr // of status.loadBalancer
	Foreign      bool         // the status has something else, too
}

type apiService struct {
	Metadata struct {
		Namespace, Name, UID, ResourceVersion string
		Annotations                           map[string]string
	}
	Spec struct {
		Type, LoadBalancerIP, ExternalTrafficPolicy, IPFamilyPolicy string
		LoadBalancerClass                                           *string
		ClusterIPs                                                  []string
	}
	Status struct {
		LoadBalancer struct {
			Ingress []struct{ IP, Hostname, IPMode string }
		}
	}
}

// ParseService reads a Service as the API serves it. If err is not nil and it has a name, the rest is what can be read.
func ParseService(text []byte) (Service, error) {
	var o apiService
	err := json.Unmarshal(text, &o)
	s := Service{
		Name: services.Name{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, UID: o.Metadata.UID, Version: o.Metadata.ResourceVersion,
		Balanced: o.Spec.Type == services.TypeLoadBalancer, Class: o.Spec.LoadBalancerClass, Prefers: o.Spec.IPFamilyPolicy == "PreferDualStack",
		Local: o.Spec.ExternalTrafficPolicy == "Local", Pool: o.Metadata.Annotations[AnnotationPool],
	}
	for _, text := range o.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			s.Families = append(s.Families, a.Is6())
		}
	}
	for _, in := range o.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(in.IP)
		if s.Foreign = s.Foreign || err != nil || in.Hostname != "" || in.IPMode == "Proxy"; err == nil {
			s.Status = append(s.Status, a)
		}
	}
	s.request(o.Spec.LoadBalancerIP + "," + o.Metadata.Annotations[AnnotationAddresses])
	if err != nil {
		err = fmt.Errorf("read service %s: %w", s.Name, err)
	}
	return s, err
}

// request reads the addresses that a Service requests.
func (s *Service) request(text string) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		a, err := netip.ParseAddr(word)
		switch {
		case err != nil || a.Zone() != "":
			s.Wrong = fmt.Sprintf("it requests %q, which is no address: correct %s or spec.loadBalancerIP", word, AnnotationAddresses)
		case slices.Contains(s.Requested, a):
		case s.requests(a.Is6()).IsValid():
			s.Wrong = fmt.Sprintf("it requests both %s and %s: request one address of a family", s.requests(a.Is6()), a)
		default:
			s.Requested = append(s.Requested, a)
		}
	}
}

// requests returns the address of a family that a Service requests, or none.
func (s *Service) requests(ipv6 bool) (a netip.Addr) {
	for _, r := range s.Requested {
		if r.Is6() == ipv6 {
			return r
		}
	}
	return a
}

// Node is what counts of a Node here.
type Node struct {
	Name     string
	Excluded bool           // load balancers must not send packets to it, or it is about to be deleted
	Reserved []netip.Prefix // its addresses and podCIDRs, which no Service gets
}

// Holding is who has an address: its Lease.
type Holding struct {
	Addr    netip.Addr
	Service services.Name
	UID     string // of the Service
	Holder  string // the session that owns the address; "": nobody
	Created time.Time
	Object  string // the uid of the Lease
	Version string // its resourceVersion
}

// Session is the Lease of a node, as it was seen last.
type Session struct {
	ID      string // names the session: NODE/RANDOM
	Version string
	Seen    time.Duration // when this node saw this version first, by its own clock
	Lasts   time.Duration // how long a renewal is good for
}

// margin is for clocks that run at different speeds.
const margin = 100 * time.Millisecond

// ended returns when a session ends if nobody renews it.
func (s Session) ended() time.Duration { return s.Seen + s.Lasts + margin }

// NodeOf returns the node of a session.
func NodeOf(session string) string {
	i := strings.LastIndexByte(session, '/')
	return session[:max(i, 0)]
}

// LeaseName returns the name of an address's Lease, such as address-192.0.2.1 or address-2001-0db8-0000-0000-0000-0000-0000-0001.
func LeaseName(a netip.Addr) string {
	return addressPrefix + strings.ReplaceAll(a.StringExpanded(), ":", "-")
}

// SessionName returns the name of a node's Lease.
func SessionName(node string) string { return nodePrefix + node }

const (
	addressPrefix = "address-"
	nodePrefix    = "node-"
)

// errLease means that a Lease is neither an address's nor a node's.
var errLease = errors.New("its name begins neither with " + addressPrefix + " nor with " + nodePrefix)

// addressOf returns the address of a Lease.
func addressOf(name string) (a netip.Addr, err error) {
	text, ok := strings.CutPrefix(name, addressPrefix)
	if !ok {
		return a, errLease
	}
	if a, err = netip.ParseAddr(text); err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	}
	if err == nil && LeaseName(a) != name {
		err = fmt.Errorf("the Lease of %s has the name %s", a, LeaseName(a))
	}
	return a, err
}
