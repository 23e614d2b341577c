// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
)

// serveLAN serves requests that change a Lease or the status of a Service, or read one Lease, and reports whether it was one.
func (s *apiServer) serveLAN(w http.ResponseWriter, r *http.Request) bool {
	service, ofService := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/status"), "/api/v1/namespaces/")
	name, one := strings.CutPrefix(r.URL.Path, leasesPath+"/")
	switch {
	case r.Method == http.MethodPatch && ofService:
		s.patchService(w, r, strings.Replace(service, "/services/", "/", 1))
	case one || r.URL.Path == leasesPath && r.Method == http.MethodPost:
		s.changeLease(w, r, name)
	default:
		return false
	}
	return true
}

// meta is what the server looks at in an object.
type meta struct {
	Metadata struct{ Name, ResourceVersion string }
}

func (s *apiServer) changeLease(w http.ResponseWriter, r *http.Request, name string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Error(err)
	}
	var given meta
	var condition struct {
		Preconditions struct{ ResourceVersion string }
	}
	if len(body) > 0 && (json.Unmarshal(body, &given) != nil || json.Unmarshal(body, &condition) != nil) {
		s.Errorf("%s %s has the body %s", r.Method, r.URL.Path, body)
	}
	if r.Method == http.MethodPost {
		name = given.Metadata.Name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds.of(lan.Leases)
	key := lan.Namespace + "/" + name
	old := k.objects[key]
	var had meta
	if old != "" && json.Unmarshal([]byte(old), &had) != nil {
		s.Errorf("the server has %s", old)
	}
	w.Header().Set("Content-Type", "application/json")
	version := had.Metadata.ResourceVersion
	switch {
	case k.refuse != 0:
		w.WriteHeader(k.refuse)
	case r.Method == http.MethodPost && old != "", r.Method == http.MethodPut && given.Metadata.ResourceVersion != version,
		r.Method == http.MethodDelete && old != "" && condition.Preconditions.ResourceVersion != version:
		w.WriteHeader(http.StatusConflict)
	case old == "" && r.Method != http.MethodPost:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		fmt.Fprint(w, old) //nolint:errcheck // the client sees it
	case r.Method == http.MethodDelete:
		k.note("DELETED", old)
		delete(k.objects, key)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`) //nolint:errcheck // the client sees it
	default:
		event := map[bool]string{true: "ADDED", false: "MODIFIED"}[old == ""]
		k.objects[key] = k.note(event, s.metadataFirst(body, nil))
		fmt.Fprint(w, k.objects[key]) //nolint:errcheck // the client sees it
	}
}

// metadataFirst returns an object as kinds keep it, with some fields of another one.
func (s *apiServer) metadataFirst(body []byte, more map[string]any) string {
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		s.Error(err)
	}
	m, _ := o["metadata"].(map[string]any)
	delete(m, "resourceVersion")
	delete(o, "metadata")
	for key, value := range more {
		if key != "metadata" {
			o[key] = value
		}
	}
	first, _ := json.Marshal(m)
	rest, _ := json.Marshal(o)
	return `{"metadata":` + string(first) + "," + string(rest[1:])
}

func (s *apiServer) patchService(w http.ResponseWriter, r *http.Request, name string) {
	var patch map[string]any
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		s.Errorf("patch of %s: %v", r.URL.Path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds["/api/v1/services"]
	var had meta
	if err := json.Unmarshal([]byte(k.objects[name]), &had); err != nil {
		s.Errorf("patch of %s, which is %q: %v", name, k.objects[name], err)
	}
	m, _ := patch["metadata"].(map[string]any)
	if m["resourceVersion"] != had.Metadata.ResourceVersion {
		w.WriteHeader(http.StatusConflict)
		return
	}
	k.objects[name] = k.note("MODIFIED", s.metadataFirst([]byte(k.objects[name]), patch))
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, k.objects[name]) //nolint:errcheck // the client sees it
}
