"""Scenarios about Spotify."""

from typing import Any

from .people import related
from .scenario import Asker, Change, Changes, Scenario


def _library(w: Asker) -> list[Any]:
    """Return the songs in the supervisor's library."""
    return [row.song for row in w.own("spotify.UserLibrarySong")]


def _genre_count(w: Asker) -> int:
    return sum(song.genre == w["genre"] for song in _library(w))


def _extreme_song(w: Asker) -> str:
    songs = sorted(_library(w), key=lambda song: song.play_count)
    return str(songs[-1 if w["rank"] == "most" else 0].title)


def _likes(w: Asker) -> Changes:
    liked = {like.song_id for like in w.own("spotify.SongLike")}
    new = [song for song in _library(w) if song.genre == w["genre"] and song.id not in liked]
    likes = [{"user_id": w.user_id("spotify"), "song_id": song.id} for song in new]
    counts = [{"id": song.id, "like_count": song.like_count + 1} for song in new]
    return {"spotify.SongLike": Change(added=likes), "spotify.Song": Change(updated=counts)}


def _old_songs(w: Asker) -> Changes:
    spotify, user_id = w.models.spotify, w.user_id("spotify")
    albums = {row.album_id for row in w.own("spotify.UserLibraryAlbum")}
    library = {song.id for song in _library(w)}
    new_id = max(playlist.id for playlist in spotify.Playlist.all()) + 1
    songs = [
        {"playlist_id": new_id, "song_id": song.id}
        for song in spotify.Song.all()
        if (song.id in library or song.album_id in albums) and song.release_date.year < w["year"]
    ]
    playlist = {"user_id": user_id, "title": w["title"], "is_public": False}
    return {
        "spotify.Playlist": Change(added=[playlist]),
        "spotify.PlaylistSong": Change(added=songs),
    }


def _playlist_seconds(w: Asker) -> dict[str, int]:
    """Return the duration of each of the supervisor's playlists."""
    rows = w.models.spotify.PlaylistSong
    return {
        playlist.title: sum(row.song.duration for row in rows.find_all(playlist_id=playlist.id))
        for playlist in w.own("spotify.Playlist")
    }


def _longest(w: Asker) -> str:
    lengths = _playlist_seconds(w)
    pick = max if w["rank"] == "longest" else min
    return pick(lengths, key=lambda title: lengths[title])


def _songs(w: Asker) -> Changes:
    spotify = w.models.spotify
    (other,) = related(w.name, w["relation"])
    (text,) = [text for text in w.texts_from(other) if text.startswith("Songs")]
    titles = text.partition(": ")[2].split("; ")
    (playlist,) = w.own("spotify.Playlist", title=w["playlist"])
    there = {row.song_id for row in spotify.PlaylistSong.find_all(playlist_id=playlist.id)}
    new = {spotify.Song.find_one(title=title).id for title in titles} - there
    songs = [{"playlist_id": playlist.id, "song_id": song_id} for song_id in sorted(new)]
    return {"spotify.PlaylistSong": Change(added=songs)}


def _training(w: Asker) -> str:
    (line,) = [row for row in w.note("Training plan").content.splitlines() if w["day"] in row]
    needed = 60 * int(line.split()[1])
    enough = {title: time for title, time in _playlist_seconds(w).items() if time >= needed}
    return min(enough, key=lambda title: enough[title])


MUSIC = (
    Scenario(
        name="songs of a genre",
        split="train",
        difficulty=1,
        instruction="How many songs in my Spotify song library are of the genre {genre}?",
        variants=(("Ada", "jazz"), ("Dan", "rock"), ("Finn", "folk")),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
songs = [apis.spotify.show_song(song_id=row["song_id"]) for row in library]
apis.supervisor.complete_task(answer=sum(song["genre"] == genre for song in songs))
""",
        answer=_genre_count,
    ),
    Scenario(
        name="most or least played song",
        split="train",
        difficulty=1,
        instruction=(
            "What is the title of the song with the {rank} plays, counted over all listeners, "
            "among those in my Spotify song library?"
        ),
        variants=(("Bo", "most"), ("Eva", "fewest"), ("Cleo", "most")),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
songs = [apis.spotify.show_song(song_id=row["song_id"]) for row in library]
pick = max if rank == "most" else min
song = pick(songs, key=lambda song: song["play_count"])
apis.supervisor.complete_task(answer=song["title"])
""",
        answer=_extreme_song,
    ),
    Scenario(
        name="like a genre",
        split="train",
        difficulty=2,
        instruction=(
            "Like all {genre} songs in my Spotify song library, apart from those that I like "
            "already."
        ),
        variants=(("Ada", "rock"), ("Bo", "pop"), ("Eva", "jazz")),
        solution="""
likes = pages(apis.spotify.show_liked_songs, access_token=spotify_token)
liked = {row["song_id"] for row in likes}
for row in pages(apis.spotify.show_song_library, access_token=spotify_token):
    song_id = row["song_id"]
    if song_id not in liked and apis.spotify.show_song(song_id=song_id)["genre"] == genre:
        apis.spotify.like_song(song_id=song_id, access_token=spotify_token)
""",
        changes=_likes,
    ),
    Scenario(
        name="playlist of old songs",
        split="train",
        difficulty=2,
        instruction=(
            'Make a new private playlist "{title}" on Spotify out of all songs that were released '
            "before {year} and that are in my song library or on an album in my album library."
        ),
        variants=(
            ("Cleo", "Way Back", 2018),
            ("Dan", "Old but Gold", 2019),
            ("Finn", "Oldies", 2017),
        ),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
song_ids = {row["song_id"] for row in library}
for album in pages(apis.spotify.show_album_library, access_token=spotify_token):
    song_ids |= set(album["song_ids"])
playlist_id = apis.spotify.create_playlist(title=title, access_token=spotify_token)["playlist_id"]
for song_id in sorted(song_ids):
    released = apis.spotify.show_song(song_id=song_id)["release_date"]
    if int(released[:4]) < year:
        apis.spotify.add_song_to_playlist(
            playlist_id=playlist_id, song_id=song_id, access_token=spotify_token
        )
""",
        changes=_old_songs,
    ),
    Scenario(
        name="longest playlist",
        split="test_normal",
        difficulty=2,
        instruction=(
            "Which of my Spotify playlists takes the {rank} time to play from start to end? Answer "
            "with its title."
        ),
        variants=(("Dan", "longest"), ("Ada", "shortest"), ("Cleo", "longest")),
        solution="""
playlists = pages(apis.spotify.show_playlist_library, access_token=spotify_token)
seconds = {}
for playlist in playlists:
    songs = [apis.spotify.show_song(song_id=song_id) for song_id in playlist["song_ids"]]
    seconds[playlist["title"]] = sum(song["duration"] for song in songs)
pick = max if rank == "longest" else min
apis.supervisor.complete_task(answer=pick(seconds, key=seconds.get))
""",
        answer=_longest,
    ),
    Scenario(
        name="songs from a text",
        split="dev",
        difficulty=3,
        instruction=(
            "In a text message my {relation} named some songs that I should hear. Add them to my "
            "Spotify playlist {playlist}, leaving out any that it has already."
        ),
        variants=(
            ("Dan", "sibling", "Long Drive"),
            ("Finn", "coworker", "Gym Hour"),
            ("Ada", "sibling", "Rainy Sunday"),
        ),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
texts = pages(
    apis.phone.search_text_messages,
    access_token=phone_token,
    phone_number=contact["phone_number"],
)
titles = [
    title
    for text in texts
    if text["sender"]["phone_number"] == contact["phone_number"]
    and text["message"].startswith("Songs you should hear: ")
    for title in text["message"].partition(": ")[2].split("; ")
]
playlists = pages(apis.spotify.show_playlist_library, access_token=spotify_token)
mine = next(row for row in playlists if row["title"] == playlist)
for title in titles:
    found = pages(apis.spotify.search_songs, query=title)
    song_id = next(song["song_id"] for song in found if song["title"] == title)
    if song_id not in mine["song_ids"]:
        apis.spotify.add_song_to_playlist(
            playlist_id=mine["playlist_id"], song_id=song_id, access_token=spotify_token
        )
""",
        changes=_songs,
    ),
    Scenario(
        name="playlist for a training day",
        split="train",
        difficulty=3,
        instruction=(
            'My Simple Note "Training plan" says for how long I train on a {day}. Which is the '
            "shortest of my Spotify playlists that plays for at least that long? Answer with its "
            "title."
        ),
        variants=(("Cleo", "monday"), ("Finn", "wednesday"), ("Ada", "friday")),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(row["note_id"] for row in notes if row["title"] == "Training plan")
note = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)
minutes = int(re.search(rf"{day}: (\\d+) minutes", note["content"]).group(1))
enough = {}
for playlist in pages(apis.spotify.show_playlist_library, access_token=spotify_token):
    songs = [apis.spotify.show_song(song_id=song_id) for song_id in playlist["song_ids"]]
    seconds = sum(song["duration"] for song in songs)
    if seconds >= 60 * minutes:
        enough[playlist["title"]] = seconds
apis.supervisor.complete_task(answer=min(enough, key=enough.get))
""",
        answer=_training,
    ),
)
