// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/node/networks"
)

// podPatches counts requests that change the status of pods.
type podPatches struct {
	refuse int // status of all answers; 0: none
	n      int // that changed a pod

	refused, missing, otherUID int

	path, uid string   // of the last one that changed a pod
	keys      []string // its annotations
}

// servePods serves a merge patch of a pod's annotations through the subresource status, and reports whether it was one. Like the API server,
// it refuses another UID as not valid.
func (s *apiServer) servePods(w http.ResponseWriter, r *http.Request) bool {
	name, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/status"), "/api/v1/namespaces/")
	name, kind := strings.Replace(name, "/pods/", "/", 1), strings.Contains(name, "/pods/")
	if r.Method != http.MethodPatch || !ok || !kind {
		return false
	}
	var patch struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" || !strings.HasSuffix(r.URL.Path, "/status") {
		s.Errorf("patch of %s: %v", r.URL.Path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	code := s.patchPod(r.URL.Path, name, patch.Metadata.UID, patch.Metadata.Annotations)
	w.WriteHeader(code)
	if code == http.StatusUnprocessableEntity {
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"Pod is invalid: Too long"}`) //nolint:errcheck // the client sees it
	}
	return true
}

// patchPod changes a pod, and returns the status of the answer.
func (s *apiServer) patchPod(path, name, uid string, annotations map[string]string) int {
	k, p := s.kinds.of(networks.Pods), &s.pods
	had := k.objects[name]
	var o map[string]any
	if had != "" && json.Unmarshal([]byte(had), &o) != nil {
		s.Errorf("the server has %s", had)
	}
	m, _ := o["metadata"].(map[string]any)
	switch {
	case p.refuse != 0:
		p.refused++
		return p.refuse
	case had == "":
		p.missing++
		return http.StatusNotFound
	case m["uid"] != uid:
		p.otherUID++
		return http.StatusUnprocessableEntity
	}
	p.n, p.path, p.uid, p.keys = p.n+1, path, uid, slices.Sorted(maps.Keys(annotations))
	has, _ := m["annotations"].(map[string]any)
	if has == nil {
		has = make(map[string]any)
	}
	for key, value := range annotations {
		has[key] = value
	}
	m["annotations"] = has
	k.objects[name] = k.note("MODIFIED", s.metadataFirst([]byte(text(o)), nil))
	return http.StatusOK
}
