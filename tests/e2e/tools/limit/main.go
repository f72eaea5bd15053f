// limit is an extender that only takes time on the wire: it answers each call of filter with the first
// node name. Benches compare ours with it. Argument: the port on 127.0.0.1.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
)

var names = []byte(`"NodeNames":[`)

// filter answers with the first of the node names. The names are the last field of ExtenderArgs, so the
// pod before them is not decoded.
func filter(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	chosen := []string{}
	if at := bytes.LastIndex(body, names); at >= 0 {
		rest := body[at+len(names):]
		if end := bytes.IndexAny(rest, ",]"); end > 0 {
			var name string
			if json.Unmarshal(rest[:end], &name) == nil {
				chosen = append(chosen, name)
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(map[string][]string{"NodeNames": chosen}); err != nil {
		log.Print(err)
	}
}

func main() {
	http.HandleFunc("/", filter)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
