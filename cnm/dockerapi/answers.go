// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dockerapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
)

// drain is how long running answers may take when the server ends.
const drain = 2 * time.Second

// Serve answers on l until ctx ends. It closes l.
func Serve(ctx context.Context, l net.Listener, a *API) error {
	srv := &http.Server{Handler: a, ReadHeaderTimeout: drain, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) //nolint:errcheck // Serve returns the error
	defer stop()
	err := srv.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}

func has(a *remote.Attachment) cnm.Interface {
	if a.Interface == nil {
		return cnm.Interface{}
	}
	return *a.Interface
}

// text is empty for an unknown address.
func text(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func (a *API) info(w http.ResponseWriter) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	write(w, map[string]any{"Containers": len(containers(list)), "ContainersRunning": len(containers(list)), "OSType": "linux",
		"Swarm": map[string]string{"LocalNodeState": "inactive"}})
}

func (a *API) networks(w http.ResponseWriter) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	out := []any{}
	for _, n := range list {
		out = append(out, n.docker())
	}
	write(w, out)
}

// network answers with the network of an id, else of a name, else of a prefix of the id:
// Docker's order.
func (a *API) network(w http.ResponseWriter, id string) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	for _, is := range []func(network) bool{
		func(n network) bool { return n.Request.NetworkID == id },
		func(n network) bool { return n.name == id },
		func(n network) bool { return id != "" && strings.HasPrefix(n.Request.NetworkID, id) },
	} {
		if i := slices.IndexFunc(list, is); i >= 0 {
			write(w, list[i].docker())
			return
		}
	}
	fail(w, http.StatusNotFound, "network "+id+" not found")
}

// containers are those of all networks, by id, with their settings.
func containers(list []network) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, n := range list {
		for _, m := range n.members {
			if out[m.ContainerID] == nil {
				out[m.ContainerID] = map[string]any{"SandboxKey": m.NetNS, "Networks": map[string]any{}}
			}
			out[m.ContainerID]["Networks"].(map[string]any)[n.name] = n.settings(m)
		}
	}
	return out
}

func (n network) settings(m *remote.Attachment) map[string]any {
	i := has(m)
	s := map[string]any{"NetworkID": n.Request.NetworkID, "EndpointID": m.EndpointID, "MacAddress": i.MacAddress, "IPAddress": "", "GlobalIPv6Address": ""}
	if i.Address.IsValid() {
		s["IPAddress"], s["IPPrefixLen"] = i.Address.Addr().String(), i.Address.Bits()
	}
	if i.AddressIPv6.IsValid() {
		s["GlobalIPv6Address"], s["GlobalIPv6PrefixLen"] = i.AddressIPv6.Addr().String(), i.AddressIPv6.Bits()
	}
	return s
}

func (a *API) containers(w http.ResponseWriter) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	out := []any{}
	for id, settings := range containers(list) {
		out = append(out, map[string]any{"Id": id, "Names": []string{"/" + id}, "State": "running", "Labels": map[string]string{}, "NetworkSettings": settings})
	}
	write(w, out)
}

func (a *API) container(w http.ResponseWriter, id string) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	settings, ok := containers(list)[id]
	if !ok {
		fail(w, http.StatusNotFound, "No such container: "+id)
		return
	}
	write(w, map[string]any{"Id": id, "Name": "/" + id, "State": map[string]any{"Running": true, "Status": "running"},
		"Config": map[string]any{"Labels": map[string]string{}, "Hostname": ""}, "NetworkSettings": settings})
}

// poll is how often events looks for containers that joined or left.
const poll = 500 * time.Millisecond

// events streams the containers that join and leave a network until the caller goes.
// While the state cannot be read, it reports none.
func (a *API) events(w http.ResponseWriter, r *http.Request) {
	list, ok := a.list(w)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	if flush.Flush() != nil {
		return
	}
	before := joined(list)
	for tick := time.NewTicker(poll); ; {
		select {
		case <-r.Context().Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		list, err := a.read()
		if err != nil {
			continue
		}
		now := joined(list)
		for _, e := range changes(before, now) {
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
		}
		if flush.Flush() != nil {
			return
		}
		before = now
	}
}

// joined are the pairs of network and container.
func joined(list []network) map[[2]string]string {
	out := map[[2]string]string{}
	for _, n := range list {
		for _, m := range n.members {
			out[[2]string{n.Request.NetworkID, m.ContainerID}] = n.name
		}
	}
	return out
}

func changes(before, now map[[2]string]string) (list []map[string]any) {
	event := func(action string, at [2]string, name string) {
		t := time.Now()
		list = append(list, map[string]any{
			"Type": "network", "Action": action, "scope": "local", "time": t.Unix(), "timeNano": t.UnixNano(),
			"Actor": map[string]any{"ID": at[0], "Attributes": map[string]string{"container": at[1], "name": name}},
		})
	}
	for at, name := range now {
		if _, ok := before[at]; !ok {
			event("connect", at, name)
		}
	}
	for at, name := range before {
		if _, ok := now[at]; !ok {
			event("disconnect", at, name)
		}
	}
	return list
}
