// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// jsonKind has the objects of one kind, which the server sends as JSON.
type jsonKind struct {
	server  *apiServer // its lock is for all fields
	absent  bool       // the server does not have the kind
	refuse  int        // status of all answers; 0: none
	noInit  bool       // no watch begins with all objects, as before Kubernetes 1.32
	oldEtcd bool       // nor here, but the watch is opened, as Kubernetes does with an old etcd
	objects map[string]string
	log     []jsonChange
	oldest  int
	lists   int // pages
	watches int
	sent    int // bytes
}

type jsonChange struct {
	rev        int
	kind, text string
}

// jsonKinds are the kinds by path.
type jsonKinds map[string]*jsonKind

// otherVersionPath has ClusterNetworkPolicies in a version that the agent does not read.
const otherVersionPath = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"

func newJSONKinds(s *apiServer) jsonKinds {
	out := jsonKinds{definitionsPath: {server: s, objects: map[string]string{}}, otherVersionPath: {server: s, objects: map[string]string{}}}
	for _, w := range allWatches() {
		out[w.path] = &jsonKind{server: s, objects: map[string]string{}}
	}
	return out
}

func allWatches() []*kindWatch {
	return slices.Concat(policyWatches(nil), serviceWatches(nil, false), lanWatches(nil), podNetworkWatches(nil, ""))
}

// of returns a kind.
func (k jsonKinds) of(kind fmt.Stringer) *jsonKind {
	for _, w := range allWatches() {
		if w.String() == kind.String() {
			return k[w.path]
		}
	}
	return nil
}

// put creates or changes an object. The text begins with {"metadata":{.
func (k *jsonKind) put(text string) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	o, err := readObject([]byte(text))
	if err != nil {
		k.server.Error(err)
		return
	}
	kind := "ADDED"
	if k.objects[o.Namespace+"/"+o.Name] != "" {
		kind = "MODIFIED"
	}
	k.objects[o.Namespace+"/"+o.Name] = k.note(kind, text)
}

// remove deletes an object.
func (k *jsonKind) remove(name string) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	k.note("DELETED", k.objects[name])
	delete(k.objects, name)
}

func (k *jsonKind) note(event, text string) string {
	s := k.server
	s.rev++
	text = strings.Replace(text, `{"metadata":{`, fmt.Sprintf(`{"metadata":{"resourceVersion":"%d",`, s.rev), 1)
	k.log = append(k.log, jsonChange{s.rev, event, text})
	s.change.Broadcast()
	return text
}

func (k *jsonKind) serve(w http.ResponseWriter, r *http.Request) {
	s := k.server
	s.mu.Lock()
	absent, refuse, invalid := k.absent, k.refuse, k.noInit && r.URL.Query().Get("sendInitialEvents") != ""
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case refuse != 0:
		w.WriteHeader(refuse)
	case absent:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`) //nolint:errcheck // the client sees it
	case invalid:
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`) //nolint:errcheck // the client sees it
	case r.URL.Query().Get("watch") != "":
		k.watch(w, r)
	default:
		k.list(w, r)
	}
}

// list sends a page. The token of the next one is the first name that is left.
func (k *jsonKind) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	k.server.mu.Lock()
	k.lists++
	names := slices.Sorted(maps.Keys(k.objects))
	first, _ := slices.BinarySearch(names, query.Get("continue"))
	names, next := names[first:], ""
	if limit > 0 && len(names) > limit {
		names, next = names[:limit], names[limit]
	}
	var items []string
	for _, name := range names {
		items = append(items, k.objects[name])
	}
	rev := k.server.rev
	k.server.mu.Unlock()
	n, _ := fmt.Fprintf(w, `{"kind":"List","metadata":{"resourceVersion":"%d","continue":%q},"items":[%s]}`, rev, next, strings.Join(items, ","))
	k.count(n)
}

func (k *jsonKind) count(n int) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	k.sent += n
}

// watch streams changes, after all objects if the client asks for them.
func (k *jsonKind) watch(w http.ResponseWriter, r *http.Request) {
	s, query := k.server, r.URL.Query()
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	s.mu.Lock()
	k.watches++
	initial := query.Get("sendInitialEvents") == "true"
	gone, unable := !initial && from < k.oldest, initial && k.oldEtcd
	var first []jsonChange
	if initial {
		for _, text := range k.objects {
			first = append(first, jsonChange{0, "ADDED", text})
		}
		from = s.rev
		first = append(first, jsonChange{from, "BOOKMARK", fmt.Sprintf(`{"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, from)})
	}
	s.mu.Unlock()
	send := func(list []jsonChange) {
		for _, c := range list {
			n, _ := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", c.kind, c.text)
			k.count(n)
		}
		w.(http.Flusher).Flush()
	}
	if gone {
		send([]jsonChange{{0, "ERROR", `{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`}})
		return
	}
	if unable {
		send([]jsonChange{{0, "ERROR", `{"kind":"Status","status":"Failure","reason":"InternalError","code":500,"message":"the required storage feature is disabled"}`}})
		return
	}
	send(first)
	go func() { <-r.Context().Done(); s.change.Broadcast() }()
	for r.Context().Err() == nil {
		list, ok := k.next(r, from)
		if !ok {
			return
		}
		send(list)
		from = list[len(list)-1].rev
	}
}

// next waits for changes after a revision. ok is false if the watch was cut.
func (k *jsonKind) next(r *http.Request, after int) (list []jsonChange, ok bool) {
	s := k.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for r.Context().Err() == nil && !s.closed && after >= k.oldest {
		first, _ := slices.BinarySearchFunc(k.log, after+1, func(c jsonChange, rev int) int { return c.rev - rev })
		if first < len(k.log) && !s.deaf {
			return slices.Clone(k.log[first:]), true
		}
		s.change.Wait()
	}
	return nil, false
}

// text returns an object as JSON.
func text(o any) string {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(data)
}
