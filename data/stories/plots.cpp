#include "data/stories/plots.h"

namespace stories {

const std::vector<Character>& characters() {
  static const std::vector<Character> list = {{"Anna", "girl", true},          {"Ben", "boy"},
                                              {"Clara", "girl", true},         {"David", "boy"},
                                              {"Ella", "girl", true},          {"Finn", "boy"},
                                              {"Greta", "girl", true},         {"Henry", "boy"},
                                              {"Ida", "girl", true},           {"Jonas", "boy"},
                                              {"Kira", "girl", true},          {"Leo", "boy"},
                                              {"Mara", "girl", true},          {"Noah", "boy"},
                                              {"Olive", "girl", true},         {"Peter", "boy"},
                                              {"Rosa", "girl", true},          {"Sam", "boy"},
                                              {"Tilda", "girl", true},         {"Victor", "boy"},
                                              {"Bramble", "young bear"},       {"Pip", "small mouse"},
                                              {"Willow", "gentle deer", true}, {"Rusty", "red fox"},
                                              {"Luna", "grey owl", true},      {"Hazel", "quick squirrel", true},
                                              {"Moss", "old tortoise"},        {"Daisy", "white lamb", true},
                                              {"Toby", "brown dog"},           {"Juniper", "black cat", true},
                                              {"Otto", "round hedgehog"},      {"Pearl", "little duck", true}};
  return list;
}

const std::vector<Character>& elders() {
  static const std::vector<Character> list = {{"Grandmother May", "grandmother", true},
                                              {"Grandfather Tom", "grandfather"},
                                              {"Aunt Ruth", "aunt", true},
                                              {"Uncle Karl", "uncle"},
                                              {"Mrs. Bell", "teacher", true},
                                              {"Mr. Stone", "baker"},
                                              {"Captain Wood", "sailor"},
                                              {"Doctor Lane", "doctor", true},
                                              {"Miss Reed", "gardener", true},
                                              {"Mr. Fields", "farmer"}};
  return list;
}

const std::map<std::string, std::vector<std::string>>& wordLists() {
  static const std::map<std::string, std::vector<std::string>> lists = {
      {"place",
       {"in a quiet village", "in a small town by the sea", "in a house at the edge of the forest",
        "in a valley between two hills", "on a farm with a red barn", "in a street with tall trees",
        "in a cottage near the river", "in a town with a stone bridge"}},
      {"spot",
       {"the old oak tree", "the stone bridge", "the mill", "the green gate", "the top of the hill", "the little lake",
        "the edge of the forest", "the empty barn"}},
      {"thing",
       {"kite", "drum", "music box", "silver key", "blue lantern", "wooden boat", "red scarf", "glass marble",
        "old book", "brass bell", "paper star", "yellow umbrella"}},
      {"food",
       {"apple pie", "warm bread", "honey cake", "berry jam", "pumpkin soup", "nut cookies", "plum tart",
        "carrot soup"}},
      {"skill",
       {"swim", "whistle", "ride a bicycle", "paint", "play the flute", "skate", "bake bread", "read the stars",
        "dance", "climb trees"}},
      {"animal",
       {"kitten", "bird with a hurt wing", "baby rabbit", "lost puppy", "young goat", "little turtle", "tired pony",
        "small owl"}},
      {"plant", {"sunflower", "apple tree", "rose", "bean", "pumpkin", "strawberry", "cherry tree", "blue iris"}},
      {"weather", {"sunny", "windy", "misty", "cold", "warm", "rainy", "bright", "snowy"}},
      {"color", {"red", "blue", "green", "golden", "white", "purple", "orange", "silver"}},
      {"feeling", {"happy", "proud", "glad", "calm", "thankful", "cheerful"}},
      {"season", {"spring", "summer", "autumn", "winter"}},
      {"number", {"two", "three", "four", "five", "six", "seven"}}};
  return lists;
}

const std::vector<std::string>& openings() {
  static const std::vector<std::string> list = {
      "Once upon a time there was a {hero.kind} named {hero} who lived {place}.",
      "{place} there lived a {hero.kind} called {hero}.",
      "{hero} was a {hero.kind} who lived {place}. Everybody knew {hero.him} because {hero.he} [was always "
      "kind|asked so many questions|never stopped smiling|loved to sing in the morning].",
      "One {weather} morning in {season}, a {hero.kind} named {hero} woke up [very early|with a smile|and looked out "
      "of the window].",
      "Long ago, {place}, a {hero.kind} named {hero} had a [best friend|good friend|true friend] called {friend}.",
      "It was a {weather} day in {season}. {hero}, a {hero.kind}, [sat by the window|walked along the road|stood at "
      "the door] and [thought about the day|hummed a song|listened to the birds].",
      "There was once a {hero.kind} named {hero}. {hero} loved [two things|nothing more than two things]: {food} and "
      "long walks to {spot}."};
  return list;
}

const std::vector<Plot>& plots() {
  static const std::vector<Plot> list = {
      // Something is lost and found.
      {{"{hero} had a {thing} that {elder} had given {hero.him}. [It was the most beautiful thing {hero.he} "
        "owned.|{hero} took it everywhere.|{hero} kept it beside {hero.his} bed at night.]",
        "The dearest thing {hero} owned was a {color} {thing}. [{elder} had made it.|It had come in a box from far "
        "away.|{hero.he} had found it on {hero.his} birthday.]"},
       {"One {weather} afternoon the {thing} was gone. {hero} looked [under the bed|in the kitchen|behind the door] "
        "and [in the garden|in the cellar|on the stairs], but it was not there.",
        "But one evening {hero} could not find it. \"Where is my {thing}?\" {hero.he} cried. {hero.he} looked "
        "[everywhere|in every room|in every corner], and {hero.his} heart grew heavy."},
       {"{friend} came by and saw that {hero} was sad. \"[What is wrong?|Why are you crying?|What happened?]\" asked "
        "{friend}. \"I have lost my {thing},\" said {hero}. \"Then we will look for it together,\" said {friend}.",
        "{hero} went to {friend} and told {friend.him} everything. {friend} [thought for a moment|scratched "
        "{friend.his} head|nodded slowly]. \"Where did you have it last?\" {friend.he} asked. \"At {spot}, I think,\" "
        "said {hero}."},
       {"So they walked to {spot}. [The wind was strong and the path was long.|The sun was already low.|It took them "
        "an hour.] And there, [under a heap of leaves|between two stones|behind a bush], lay the {thing}.",
        "They went back the way that {hero} had come, step by step. Near {spot} something {color} shone in the grass. "
        "It was the {thing}!"},
       {"{hero} [jumped for joy|laughed out loud|could hardly believe it]. \"Thank you, {friend},\" {hero.he} said. "
        "\"Without you I would never have found it.\"",
        "\"We found it!\" {hero} shouted, and [hugged {friend}|danced around {friend}|took {friend} by the hand]. From "
        "then on {hero.he} [took better care of {hero.his} things|tied a ribbon to the {thing}|looked twice before "
        "going home]."}},
      // Learning something hard.
      {{"More than anything, {hero} wanted to {skill}. [Everyone else could do it.|{friend} could do it "
        "already.|{hero.he} dreamed of it at night.]",
        "{hero} could do many things, but {hero.he} could not {skill}. [This made {hero.him} sad.|{hero.he} did not "
        "talk about it.|{hero.he} wished for it every day.]"},
       {"On the first day {hero.he} tried and failed. On the second day {hero.he} tried again and [fell down|made a "
        "mistake|had to stop]. \"I will never learn it,\" said {hero}.",
        "{hero} tried {number} times, and {number} times it went wrong. {hero.he} sat down [on a stone|in the grass|on "
        "the steps] and [sighed|closed {hero.his} eyes|shook {hero.his} head]."},
       {"{elder} [came along the road|heard this|was watching] and [smiled|sat down beside {hero.him}]. \"When I was "
        "young,\" said {elder}, \"I could not {skill} either. [You only need time.|Try a little every day.|Nobody "
        "learns it at once.]\"",
        "Then {friend} came. \"Let me show you,\" said {friend}. \"[Begin slowly.|Do not be afraid.|Look at me and do "
        "the same.] It is not so hard when somebody helps you.\""},
       {"So {hero} practiced every [morning|evening|day]. [Some days were good and some were bad.|It was hard at "
        "first, but then it became easier.|Little by little {hero.he} got better.]",
        "{hero} did not give up. [When it rained, {hero.he} practiced in the barn.|{hero.he} practiced until the stars "
        "came out.|After a week {hero.he} was much better.]"},
       {"And one {weather} day in {season}, {hero} could {skill}. {friend} [clapped|cheered|could not stop laughing "
        "for joy]. \"I knew you could do it,\" said {friend}.",
        "At last the day came. {hero} took a deep breath and began, and this time everything went well. \"Look at "
        "me!\" {hero.he} called. {elder} was very proud of {hero.him}."}},
      // Helping an animal.
      {{"On the way to {spot}, {hero} heard a [soft|strange|small] sound. [Behind a tree|Under a bush|Beside the road] "
        "sat a {animal}.",
        "One {weather} day {hero} found a {animal} near {spot}. It was [hungry|cold|afraid] and [did not move|looked "
        "at {hero.him} with big eyes|made a sad little sound]."},
       {"\"Do not be afraid,\" said {hero}. \"I will help you.\" {hero.he} [wrapped it in a {color} scarf|gave it some "
        "water|carried it home very carefully].",
        "{hero} ran to fetch {friend}. \"Come quickly,\" {hero.he} said. \"There is a {animal}, and it needs help.\" "
        "Together they [brought it to {elder}|made a warm bed for it|gave it some milk]."},
       {"{elder} looked at it closely. \"[It will be well in a few days|It only needs rest and food|You did the right "
        "thing],\" said {elder}. \"[Keep it warm.|Give it some water every hour.|Let it sleep now.]\"",
        "For {number} days {hero} took care of it. {hero.he} brought it food in the morning and [sang to it in the "
        "evening|sat beside it at night|told it stories]."},
       {"Soon it was strong again. {hero} was {feeling}, but also a little sad, because {hero.he} knew that it [had to "
        "go home|belonged to the forest|could not stay].",
        "One morning it stood up and [looked at the door|looked out of the window|wanted to go out]. {hero} "
        "understood. {hero.he} carried it back to {spot}."},
       {"\"Goodbye, little friend,\" said {hero}. It [looked back once|made a happy sound|turned its head] and then it "
        "was gone. [But every {season} it came back to visit.|Sometimes {hero} saw it at {spot}.|{hero} never forgot "
        "it.]",
        "There it found its mother, who had been waiting. {hero} [waved|smiled|watched them for a long time]. \"Now "
        "everybody is where they belong,\" said {friend}."}},
      // A gift.
      {{"The next day was the birthday of {elder}, and {hero} had no gift. [\"What can I give?\" {hero.he} "
        "asked.|{hero.he} had no money either.|{hero.he} had thought about it all week.]",
        "{hero} wanted to give {friend} a present. But what? [A {thing} was too dear.|{hero.he} only had {number} "
        "coins.|{friend} had everything already.]"},
       {"First {hero.he} wanted to [paint a picture|make a {thing}|bake a cake], but [the paint was dry|it broke in "
        "two|the flour was gone]. Then {hero.he} remembered the {food}.",
        "{hero} went to {spot} to think. [The water was still.|The birds were singing.|A cool wind blew.] There "
        "{hero.he} had an idea. \"I will make {food}!\" {hero.he} said."},
       {"{friend} helped {hero.him}. They [mixed and stirred|washed and cut|worked all morning], and soon the whole "
        "house smelled of {food}.",
        "{hero} asked {friend} for help. \"I will bring the [honey|apples|nuts],\" said {friend}, \"and you bring the "
        "[flour|milk|butter].\" They worked until [noon|the evening|everything was ready]."},
       {"When they were done, {hero} put the {food} [on a {color} plate|in a basket|into a box] and tied a {color} "
        "ribbon around it.",
        "It did not look perfect. [One side was too dark.|It was a little crooked.|There was a hole in the middle.] "
        "But it tasted wonderful."},
       {"\"This is the best gift I have ever had,\" said {elder}, \"because you made it yourself.\" They [sat around "
        "the table|sat in the garden] and shared it, and there was enough for everyone.",
        "Everyone [came to the table|sat down together|took a piece]. \"Who made this?\" they asked. \"We did,\" said "
        "{hero} and {friend}, and they were very {feeling}."}},
      // A storm.
      {{"One {weather} day {hero} and {friend} walked to {spot}. They took {food} with them and [a blanket|a "
        "{thing}|an old map].",
        "{hero} and {friend} were playing at {spot}. [They built a house of sticks.|They counted the clouds.|They "
        "threw stones into the water.]"},
       {"Suddenly the sky grew dark. [The wind began to blow.|Thunder rolled over the hills.|The first drops fell.] "
        "\"A storm is coming,\" said {friend}. \"We must go.\"",
        "Nobody saw the {color} clouds behind the hill. Then [lightning flashed|it thundered|it began to rain hard]. "
        "{hero} was afraid. \"What shall we do?\" {hero.he} asked."},
       {"They ran until they saw [a small hut|an old barn|a cave]. [The door was open.|A light was burning inside.|It "
        "was dry inside.] \"Come in, come in!\" called {elder}, who [was waiting out the storm there too|had seen them "
        "from the window].",
        "\"I know a place,\" said {friend}. {friend.he} took {hero} by the hand and led {hero.him} to [an old barn|a "
        "hollow tree|a small hut]. There they [sat close together|lit a lamp|listened to the rain]."},
       {"They shared the {food} and told each other stories. [After a while {hero} was not afraid any more.|The "
        "thunder seemed far away.|{hero} even laughed.]",
        "To pass the time, {hero} told a story about a {animal} and a {thing}. [It was so funny that they forgot the "
        "storm.|{friend} wanted to hear it again.|When it ended, the rain had stopped.]"},
       {"When the sun came out, there was a [rainbow|great rainbow] over {spot}. \"Look,\" said {hero}, \"without the "
        "storm we would never have seen it.\"",
        "At last the storm was over. The air smelled fresh, and [every leaf shone|the birds sang again|the road was "
        "full of puddles]. They walked home [slowly|hand in hand|and jumped into every puddle]."}},
      // A seed.
      {{"In {season}, {elder} gave {hero} a seed. \"This is a {plant},\" said {elder}. \"If you take care of it, it "
        "will surprise you.\"",
        "{hero} found a seed [in an old box|in {hero.his} pocket|on the road]. {hero.he} did not know what it was, but "
        "{elder} said it might be a {plant}."},
       {"{hero} planted it [beside the house|near the fence|in a {color} pot] and gave it water every day. But nothing "
        "happened. [One week went by, then another.|The earth stayed brown.|{hero.he} waited and waited.]",
        "{hero.he} dug a small hole near {spot} and put the seed into it. Every [morning|evening] {hero.he} came with "
        "water. \"[When will it grow?|How long must I wait?|Is it asleep?]\" {hero.he} asked."},
       {"{friend} laughed. \"Nothing will come of it,\" said {friend}. But {elder} said, \"[Good things take "
        "time.|Wait and see.|A seed knows when to wake up.]\"",
        "\"Be patient,\" said {friend}. \"My {plant} took {number} weeks.\" So {hero} [waited|sang to it|made a small "
        "fence around it]."},
       {"Then one {weather} morning there was a tiny green leaf. {hero} [called everyone|danced around it|lay down on "
        "the ground to see it better].",
        "After {number} weeks a small green tip came out of the earth. {hero} ran to {friend}. \"It is growing!\" "
        "{hero.he} called."},
       {"It grew and grew, and in the end it was the most beautiful {plant} in [the village|the whole street|the "
        "valley]. {hero} gave [the first seeds|a seed of it] to {friend}, so that {friend.he} could begin too.",
        "Months later everyone came to see the {plant}. \"How did you do it?\" they asked. \"[I waited|I gave it water "
        "and time|I did not give up],\" said {hero}."}},
      // A quarrel.
      {{"{hero} and {friend} did everything together. But one day they both wanted the same {thing}.",
        "There was only one {thing}, and both {hero} and {friend} wanted to play with it."},
       {"\"It is mine,\" said {hero}. \"No, I saw it first,\" said {friend}. They pulled and pulled until [it fell to "
        "the ground|it broke|it flew into the pond].",
        "\"Give it to me,\" said {friend}. \"You had it yesterday.\" \"No,\" said {hero}, and [ran away|turned "
        "{hero.his} back|held it tight]. {friend} went home without a word."},
       {"Now nobody was happy. {hero} sat alone at {spot}. [The day was long.|Playing alone was no fun.|Even the "
        "{food} did not taste good.]",
        "That night {hero} could not sleep. [{hero.he} thought about {friend}.|{hero.he} felt sorry.|It was too "
        "quiet.] In the morning {hero.he} went to {elder} and asked what to do."},
       {"\"A {thing} is only a {thing},\" said {elder}. \"But a friend is a friend. [Say that you are sorry.|One of "
        "you must speak first.|Go to {friend.him}.]\"",
        "{hero} took some {food} and walked to {friend}. [The way seemed very long.|{hero.his} heart beat "
        "fast.|{hero.he} stopped twice.] \"I am sorry,\" {hero.he} said. \"I want you to have it.\""},
       {"{friend} [smiled|looked at the ground|took {hero.his} hand]. \"I am sorry too,\" {friend.he} said. From that "
        "day they took turns: [{hero} on one day and {friend} on the next|an hour each|first one, then the other].",
        "\"Let us share it,\" said {friend}. So they [mended it together|played with it together|put it where both "
        "could reach it], and it was more fun than before."}},
      // Work and play at a market.
      {{"It was market day. {elder} gave {hero} {number} coins and said, \"[Buy what we need for the {food}.|Bring me "
        "a {thing}, please.|Buy something {color}.]\"",
        "{hero} had saved {number} coins. \"Today I will go to the market,\" {hero.he} said, \"and buy a {thing}.\""},
       {"The market was full of people. There were [apples and pears|ribbons and hats|cups and plates] and a man who "
        "[sold birds|played the violin|told jokes]. {hero} [looked at everything|did not know where to look first].",
        "On the way {hero.he} met {friend}, who [was carrying a heavy basket|looked very tired|was sitting beside the "
        "road]. \"Let me help you,\" said {hero}, and they went on together."},
       {"At the corner sat [an old woman|an old man] who had nothing to eat. {hero} looked at the coins in {hero.his} "
        "hand. [It was not easy.|{hero.he} thought about it for a long time.] Then {hero.he} gave away [half of "
        "them|one of them|all of them].",
        "But when {hero} wanted to pay, [a coin was missing|{hero.his} pocket was empty]. {friend} [turned out all "
        "pockets|looked on the ground]. \"Take mine,\" said {friend}. \"You would do the same for me.\""},
       {"\"You have a good heart,\" said [a voice|somebody] behind {hero.him}. It was {elder}, who had seen "
        "everything. [{elder} was not angry at all.|{elder} smiled.]",
        "The man behind the table had heard them. \"[Good friends are rare|I like that],\" he said, and he gave them "
        "the {thing} for [a song|a smile|one coin]."},
       {"They carried everything home, and in the evening there was {food} for [everyone|the whole family|all their "
        "friends].",
        "On the way home the sun was low and {color}. {hero} was tired, but {feeling}. \"This was a good day,\" "
        "{hero.he} said."}},
  };
  return list;
}

const std::vector<std::string>& endings() {
  static const std::vector<std::string> list = {
      "And {hero} was [very {feeling}|{feeling} for the rest of the day|more {feeling} than ever before].",
      "That night {hero} fell asleep with a smile.",
      "{hero} and {friend} stayed friends for ever.",
      "And if you walk to {spot} in {season}, you may still [meet {hero} there|hear them laugh].",
      "\"Tomorrow we will do it again,\" said {friend}. And they did.",
      "{elder} told this story to everyone in [the village|the street|town].",
      "And so the day ended as it had begun, [quiet and {weather}|with a song|with a smile]."};
  return list;
}

}  // namespace stories
